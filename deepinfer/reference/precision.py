"""Numbers of the oracle: where the model rounds, and in which order sums are taken (model_spec 3.0, 6).

Tensors are float64, or float32 where sums are float32; a value that the model holds in bf16 or FP8 is held in the
wide type, rounded to what bf16 or FP8 can say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from deepinfer.ops.reference.quantize import dequantize, quantize

Tensor = torch.Tensor


@dataclass(frozen=True)
class Precision:
    """rounded: with every rounding of the specification, or (ideal) none. sums: type and order of sums.

    Two rounded runs with sums "fp32" and "fp32-reversed" differ by what the order of additions alone may change.
    """

    rounded: bool = True
    sums: Literal["fp64", "fp32", "fp32-reversed"] = "fp64"

    @property
    def dtype(self) -> torch.dtype:
        """The type that everything is computed in."""
        return torch.float64 if self.sums == "fp64" else torch.float32

    def wide(self, x: Tensor) -> Tensor:
        """x in the computing type."""
        return x.to(self.dtype)

    def bf16(self, x: Tensor) -> Tensor:
        """Round to bf16."""
        return x.to(torch.float32).to(torch.bfloat16).to(x.dtype) if self.rounded else x

    def fp32(self, x: Tensor) -> Tensor:
        """Round to fp32: what the model keeps so between kernels."""
        return x.to(torch.float32).to(x.dtype) if self.rounded else x

    def matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [..., k] times weight [n, k] transposed: [..., n]."""
        if self.sums == "fp32-reversed":
            x, weight = x.flip(-1), weight.flip(-1)
        return x @ weight.transpose(-1, -2)

    def total(self, x: Tensor) -> Tensor:
        """Sum over the last dimension, which stays with size 1."""
        return (x.flip(-1) if self.sums == "fp32-reversed" else x).sum(-1, keepdim=True)

    def q8(self, x: Tensor) -> Tensor:
        """Q8: e4m3 with one power-of-two scale per 32 columns, and back."""
        return self._through(x, "e4m3", 32, "ue8m0")

    def q4_power(self, x: Tensor) -> Tensor:
        """Q4u: e2m1 with one power-of-two scale per 32 columns, and back."""
        return self._through(x, "e2m1", 32, "ue8m0")

    def q4_e4m3(self, x: Tensor) -> Tensor:
        """Q4e: e2m1 with one e4m3 scale per 16 columns, and back."""
        return self._through(x, "e2m1", 16, "e4m3")

    def _through(self, x: Tensor, fmt: str, group: int, scales: str) -> Tensor:
        if not self.rounded:
            return x
        return dequantize(*quantize(x.float(), fmt, group, scales == "ue8m0", scales)).to(x.dtype)


ROUNDED = Precision()
