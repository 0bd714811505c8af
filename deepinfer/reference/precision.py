"""Numbers of the oracle: where the model rounds, and in which order sums are taken (model_spec 3.0, 6).

Tensors are float64, or float32 where sums are float32; a value that the model holds in bf16 or FP8 is held in the
wide type, rounded to what bf16 or FP8 can say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Tensor = torch.Tensor
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


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
        if not self.rounded:
            return x
        groups, amax = _groups(x, 32)
        scale = _power_of_two(amax.clamp_min(1e-4), 448.0)
        return _ungroup(_e4m3(groups / scale) * scale, x)

    def q4_power(self, x: Tensor) -> Tensor:
        """Q4u: e2m1 with one power-of-two scale per 32 columns, and back."""
        if not self.rounded:
            return x
        groups, amax = _groups(x, 32)
        scale = _power_of_two(amax.clamp_min(6 * 2.0**-126), 6.0)
        return _ungroup(_e2m1(groups / scale) * scale, x)

    def q4_e4m3(self, x: Tensor) -> Tensor:
        """Q4e: e2m1 with one e4m3 scale per 16 columns, and back. The scale's reciprocal is taken in fp32."""
        if not self.rounded:
            return x
        groups, amax = _groups(x, 16)
        scale = _e4m3((amax.float().clamp_min(6 * 2.0**-9) * (1.0 / 6.0)).clamp_max(448.0))
        scaled = (groups.float() * (1.0 / scale.float())).to(x.dtype)
        return _ungroup(_e2m1(scaled) * scale.to(x.dtype), x)


ROUNDED = Precision()


def _groups(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    groups = x.reshape(*x.shape[:-1], -1, size)
    return groups, groups.abs().amax(-1, keepdim=True)


def _ungroup(groups: Tensor, like: Tensor) -> Tensor:
    return groups.flatten(-2).to(like.dtype)


def _power_of_two(amax: Tensor, largest: float) -> Tensor:
    """The smallest power of two s with amax / largest <= s, from the bits of the fp32 quotient (model_spec 3.0)."""
    bits = (amax.float() * torch.tensor(1.0 / largest, dtype=torch.float32)).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return torch.exp2((exponent - 127).to(amax.dtype))


def _e4m3(x: Tensor) -> Tensor:
    return x.float().clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(x.dtype)


def _e2m1(x: Tensor) -> Tensor:
    """Round to the nearest of the 15 values, ties to the even code; beyond 6 to 6."""
    values = torch.tensor(_E2M1, dtype=x.dtype)
    middles = (values[1:] + values[:-1]) / 2
    magnitude = x.abs().contiguous()
    below = torch.searchsorted(middles, magnitude)  # a tie gets the code below its middle ...
    above = torch.searchsorted(middles, magnitude, right=True)  # ... and the one above it
    return torch.copysign(values[torch.where(below % 2 == 0, below, above)], x)
