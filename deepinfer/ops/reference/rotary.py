"""Reference of the rotary embedding of heads (model_spec 3.0, 3.3)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import fused_multiply_add, quantize

_ROTATED = 64


@functools.cache
def rotate(inverse: bool) -> Kernel:
    """out = x with the last 64 columns of every head rotated by its row's position, or back; out may be x."""

    def run(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, out: torch.Tensor) -> None:
        # What is not rotated keeps its bits, a NaN's too.
        tail = turned(x[..., -_ROTATED:], positions, cos_sin, inverse)
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        out[..., -_ROTATED:] = tail

    return run


@functools.cache
def rotate_heads_quantize() -> Kernel:
    """values, scales = Q8 of o with the last 64 columns of every head rotated back, all in float32."""

    def run(
        o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        tail = turned(o[..., -_ROTATED:], positions, cos_sin, True)
        quantized, stored = quantize(torch.cat((o[..., :-_ROTATED], tail), -1), "e4m3", 32, True, "ue8m0")
        values.copy_(quantized.view(values.shape))
        scales.copy_(stored.view(scales.shape))

    return run


def turned(tail: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, inverse: bool) -> torch.Tensor:
    """Pairs (2j, 2j + 1) of tail [n, h, 64] rotated, in tail's type; rows of positions without a table row stay."""
    inside = (positions >= 0) & (positions < cos_sin.shape[0])
    cos, sin = cos_sin[torch.where(inside, positions, 0).long()][:, None].chunk(2, -1)
    sin = -sin if inverse else sin
    a, b = tail[..., 0::2].float(), tail[..., 1::2].float()
    pairs = (fused_multiply_add(a, cos, -(b * sin)), fused_multiply_add(a, sin, b * cos))
    return torch.where(inside[:, None, None], torch.stack(pairs, -1).flatten(-2).to(tail.dtype), tail)
