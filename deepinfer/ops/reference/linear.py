"""Reference of the products with the model's weights (model_spec 2.3, 3.0): float64 sums of exact products."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import dequantize


def dequantize_blocks(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """e4m3 [o, k] with a scale per 32x32 block -> float32 [o, k]."""
    return dequantize(weight, scales.repeat_interleave(32, 0)[: weight.shape[0]])


@functools.cache
def fp8_linear(o: int, k: int, out_dtype: torch.dtype) -> Kernel:
    """out = values * weight^T, both dequantised."""

    def run(
        values: torch.Tensor,
        scales: torch.Tensor,
        weight: torch.Tensor,
        weight_scales: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        wide = dequantize_blocks(weight, weight_scales).double()
        out.copy_(dequantize(values, scales).double() @ wide.T)

    return run


@functools.cache
def fp8_grouped_linear(groups: int, o: int, k: int) -> Kernel:
    """out[:, g] = values[:, g] * weight[g]^T for each group."""

    def run(
        values: torch.Tensor,
        scales: torch.Tensor,
        weight: torch.Tensor,
        weight_scales: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        wide = dequantize_blocks(weight, weight_scales).double().view(groups, o, k)
        out.copy_(torch.einsum("ngk,gok->ngo", dequantize(values, scales).double(), wide).flatten(1))

    return run


@functools.cache
def bf16_linear(k: int, out_dtype: torch.dtype, accumulate: bool) -> Kernel:
    """out = x * weight^T, or out += it in float32."""

    def run(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        product = x.double() @ weight.double().T
        out.copy_(out + product.float() if accumulate else product)

    return run
