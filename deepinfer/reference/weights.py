"""Weights of the oracle by their names in a checkpoint, dequantised when they are asked for (model_spec 2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from deepinfer.loading.dequantize import fp4_rows, fp8_blocks, fp8_rows
from deepinfer.reference.precision import Tensor


class Weights:
    """Tensors as a checkpoint stores them: `X.weight` with, where it is quantised, `X.scale`."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.tensors = tensors
        self.dtype = dtype

    def plain(self, name: str) -> Tensor:
        """A tensor that is not quantised."""
        return self.tensors[name].to(self.dtype)

    def linear(self, name: str) -> Tensor:
        """`name`.weight [out, in], whatever its format."""
        weight = self.tensors[f"{name}.weight"]
        if weight.dtype == torch.int8:
            return fp4_rows(weight, self.tensors[f"{name}.scale"]).to(self.dtype)
        if weight.dtype == torch.float8_e4m3fn:
            return fp8_blocks(weight, self.tensors[f"{name}.scale"]).to(self.dtype)
        return weight.to(self.dtype)

    def table_rows(self, name: str, index: Tensor) -> Tensor:
        """Rows of an FP8 table with a scale per 32 columns: [..., columns]."""
        weight, scale = self.tensors[f"{name}.weight"], self.tensors[f"{name}.scale"]
        return fp8_rows(weight[index], scale[index]).to(self.dtype)
