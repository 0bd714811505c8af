"""Casts to FP8 and FP4, and SwiGLU before one, in Triton (model_spec 3.0, 3.9).

A program takes groups of 32 columns wherever they lie, so no width of a row leaves lanes idle.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.quantize import quantize, widen

_GROUPS = 128
_WARPS = 4


@triton.jit
def _store(x, values, scales, group, live, FMT: tl.constexpr, GROUPS: tl.constexpr):
    """float32 [GROUPS, 32], quantised, to the places of these groups."""
    codes, stored, _ = quantize(x, FMT, 32, True, "ue8m0", GROUPS, 32)
    BYTES: tl.constexpr = codes.shape[1]
    place = group.to(tl.int64)[:, None]
    tl.store(values + place * BYTES + tl.arange(0, BYTES)[None, :], codes, mask=live[:, None])
    tl.store(scales + place + tl.arange(0, 1)[None, :], stored, mask=live[:, None])


@triton.jit(do_not_specialize=["groups"])
def _quantize(x, values, scales, groups, per_row, stride, FMT: tl.constexpr, GROUPS: tl.constexpr):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    live = group < groups
    origin = (group // per_row).to(tl.int64) * stride + (group % per_row) * 32
    value = tl.load(x + origin[:, None] + tl.arange(0, 32)[None, :], mask=live[:, None], other=0.0)
    _store(widen(value), values, scales, group, live, FMT, GROUPS)


@triton.jit(do_not_specialize=["groups"])
def _swiglu(gate_up, weights, limit, values, scales, groups, per_row, WEIGHTED: tl.constexpr, GROUPS: tl.constexpr):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    live = group < groups
    row = (group // per_row).to(tl.int64)
    origin = (row * 2 * per_row + group % per_row) * 32
    column = tl.arange(0, 32)[None, :]
    gate = widen(tl.load(gate_up + origin[:, None] + column, mask=live[:, None], other=0.0))
    up = widen(tl.load(gate_up + origin[:, None] + per_row * 32 + column, mask=live[:, None], other=0.0))
    # Comparisons with NaN are false, so NaN stays; tl.minimum would drop it.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    product = tl.div_rn(gate, 1.0 + tl.exp(-gate)) * up
    if WEIGHTED:
        product *= tl.load(weights + row, mask=live, other=0.0)[:, None]
    _store(product, values, scales, group, live, "e4m3", GROUPS)


@functools.cache
def swiglu_quantize(weighted: bool) -> Kernel:
    """values, scales = Q8(silu(min(g, limit)) * clip(u, limit) * weight) in float32."""

    def run(
        gate_up: torch.Tensor, weights: torch.Tensor | None, limit: float, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        groups = scales.numel()
        launch(
            _swiglu, (cdiv(groups, _GROUPS),), gate_up, weights, limit, values.view(torch.uint8), scales,
            groups, scales.shape[1], WEIGHTED=weighted, GROUPS=_GROUPS, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run


@functools.cache
def quantize_fp8() -> Kernel:
    """values, scales = Q8(x)."""
    return functools.partial(_cast, "e4m3")


@functools.cache
def quantize_fp4() -> Kernel:
    """values, scales = Q4u(x)."""
    return functools.partial(_cast, "e2m1")


def _cast(fmt: str, x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> None:
    groups = scales.numel()
    launch(
        _quantize, (cdiv(groups, _GROUPS),), x, values.view(torch.uint8), scales,
        groups, scales.shape[-1], x.stride(-2), FMT=fmt, GROUPS=_GROUPS, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
