"""Casts with a scale per 128 columns, and the experts' padded rows, in Triton. Nothing here waits for the device."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.quantize import decode_e4m3, decode_ue8m0, quantize, spread, widen
from deepinfer.ops.triton.rotary import rotate_neighbours

_GROUPS, _WARPS = 32, 4
_ROWS = 64
"""Divides every alignment: rows of one program belong to one expert."""


@triton.jit
def _places(groups, per_row, GROUPS: tl.constexpr):
    """Of this program's groups: (row, group in its row, whether there is one)."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    return group // per_row, group % per_row, group < groups


@triton.jit
def _store(x, values, scales, row, part, live, per_row, padded, GROUPS: tl.constexpr):
    """float32 [GROUPS, 128], quantised, to the places of these groups; a column of scales has `padded` rows."""
    codes, stored, _ = quantize(x, "e4m3", 128, True, "fp32", GROUPS, 128)
    place = (row.to(tl.int64) * per_row + part)[:, None] * 128
    tl.store(values + place + tl.arange(0, 128)[None, :], codes, mask=live[:, None])
    column = part.to(tl.int64) * padded + row
    tl.store(scales + column[:, None] + tl.arange(0, 1)[None, :], stored, mask=live[:, None])


@triton.jit(do_not_specialize=["groups", "rows", "padded"])
def _quantize(
    x, choices, values, scales, groups, rows, topk, per_row, stride, padded, CHOSEN: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    row, part, live = _places(groups, per_row, GROUPS)
    source = row
    if CHOSEN:
        choice = tl.load(choices + row, mask=live, other=-1)
        source = choice // topk
        live = live & (choice >= 0) & (source < rows)
    if tl.max(live.to(tl.int32), axis=0) > 0:  # most of a small step's rows pad
        origin = source.to(tl.int64) * stride + part * 128
        value = tl.load(x + origin[:, None] + tl.arange(0, 128)[None, :], mask=live[:, None], other=0.0)
        _store(widen(value), values, scales, row, part, live, per_row, padded, GROUPS)


@triton.jit(do_not_specialize=["groups", "there", "padded"])
def _swiglu(
    gate_up, limit, weights, choices, values, scales, groups, there, per_row, padded,
    WEIGHTED: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row, part, live = _places(groups, per_row, GROUPS)
    choice = row
    if WEIGHTED:
        choice = tl.load(choices + row, mask=live, other=-1)
        live = live & (choice >= 0) & (choice < there)
    if tl.max(live.to(tl.int32), axis=0) > 0:  # most of a small step's rows pad
        origin = gate_up + ((row.to(tl.int64) * 2 * per_row + part) * 128)[:, None] + tl.arange(0, 128)[None, :]
        gate = widen(tl.load(origin, mask=live[:, None], other=0.0))
        up = widen(tl.load(origin + per_row * 128, mask=live[:, None], other=0.0))
        # Comparisons with NaN are false, so NaN stays; tl.minimum would drop it.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        product = tl.div_rn(gate, 1.0 + tl.exp(-gate)) * up
        if WEIGHTED:
            product *= tl.load(weights + choice, mask=live, other=0.0)[:, None]
        _store(product, values, scales, row, part, live, per_row, padded, GROUPS)


@triton.jit(do_not_specialize=["groups", "table_rows", "padded"])
def _rotate(
    o, positions, table, values, scales, groups, heads, table_rows, stride, padded, GROUPS: tl.constexpr
):  # fmt: skip
    # Of a head's four groups the last is the one with the columns that are rotated.
    row, part, live = _places(groups, heads * 4, GROUPS)
    position = tl.load(positions + row, mask=live, other=-1).to(tl.int64)
    turned = (position >= 0) & (position < table_rows) & (part % 4 == 3)
    cos_row = table + (position * stride)[:, None]
    place = (row.to(tl.int64) * heads * 4 + part)[:, None] * 128 + tl.arange(0, 128)[None, :]
    w = tl.load(o + place, mask=live[:, None], other=0.0)
    w = rotate_neighbours(w, cos_row, cos_row + 32, turned[:, None], True, 64, GROUPS, 128, ROUND=False)
    _store(w, values, scales, row, part, live, heads * 4, padded, GROUPS)


@triton.jit(do_not_specialize=["groups", "padded"])
def _regroup(values, narrow_scales, wide, scales, groups, per_row, padded, GROUPS: tl.constexpr):
    row, part, live = _places(groups, per_row, GROUPS)
    group = row.to(tl.int64) * per_row + part
    codes = tl.load(values + group[:, None] * 128 + tl.arange(0, 128)[None, :], mask=live[:, None], other=0)
    powers = tl.load(narrow_scales + group[:, None] * 4 + tl.arange(0, 4)[None, :], mask=live[:, None], other=0)
    x = decode_e4m3(codes) * spread(decode_ue8m0(powers), GROUPS, 128, 32)
    _store(x, wide, scales, row, part, live, per_row, padded, GROUPS)


@triton.jit(do_not_specialize=["positions", "rows"])
def _expert_rows(
    order, offsets, ends, choices, positions, rows, experts,
    ALIGNMENT: tl.constexpr, ROWS: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    bucket = tl.arange(0, BUCKETS)
    begin = tl.load(offsets + bucket, mask=bucket < experts, other=0)
    end = tl.load(offsets + bucket + 1, mask=bucket < experts, other=0)
    begin = tl.minimum(tl.maximum(begin, 0), positions)
    count = tl.maximum(tl.minimum(end, positions) - begin, 0)
    taken = (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    upto = tl.cumsum(taken, axis=0)
    if tl.program_id(0) == 0:
        tl.store(ends + bucket, upto - taken + count, mask=bucket < experts)
    first = tl.program_id(0) * ROWS
    own = (upto > first) & (upto - taken <= first)
    # Where these rows' choices begin, and how many of their expert's come from there on.
    source = tl.sum(tl.where(own, begin + first - (upto - taken), 0), axis=0)
    left = tl.sum(tl.where(own, upto - taken + count - first, 0), axis=0)
    row = tl.arange(0, ROWS)
    choice = tl.load(order + source + row, mask=row < left, other=-1)
    tl.store(choices + first + row, choice, mask=first + row < rows)


@functools.cache
def quantize_per128(chosen: bool) -> Kernel:
    """values, scales = Q8 of x's rows, or of those that choices name, with 128 columns to a scale."""

    def run(
        x: torch.Tensor, choices: torch.Tensor | None, topk: int, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        groups = scales.numel()
        launch(
            _quantize, (cdiv(groups, _GROUPS),), x, choices, values.view(torch.uint8), scales,
            groups, x.shape[0], topk, scales.shape[1], x.stride(0), scales.stride(1),
            CHOSEN=chosen, GROUPS=_GROUPS, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run


@functools.cache
def swiglu_per128(weighted: bool) -> Kernel:
    """values, scales = the same cast of silu(min(g, limit)) * clip(u, limit) * weight in float32."""

    def run(
        gate_up: torch.Tensor,
        limit: float,
        weights: torch.Tensor | None,
        choices: torch.Tensor | None,
        values: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        groups = scales.numel()
        launch(
            _swiglu, (cdiv(groups, _GROUPS),), gate_up, limit, weights, choices, values.view(torch.uint8), scales,
            groups, 0 if weights is None else weights.shape[0], scales.shape[1], scales.stride(1),
            WEIGHTED=weighted, GROUPS=_GROUPS, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run


@functools.cache
def rotate_heads_per128() -> Kernel:
    """values, scales = the same cast of o with the last 64 columns of every head rotated back, all in float32."""

    def run(
        o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        groups = scales.numel()
        launch(
            _rotate, (cdiv(groups, _GROUPS),), o, positions, cos_sin, values.view(torch.uint8), scales,
            groups, o.shape[1], cos_sin.shape[0], cos_sin.stride(0), scales.stride(1),
            GROUPS=_GROUPS, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run


@functools.cache
def regroup_per128() -> Kernel:
    """wide, wide_scales = the same cast of what values and scales stand for."""

    def run(values: torch.Tensor, scales: torch.Tensor, wide: torch.Tensor, wide_scales: torch.Tensor) -> None:
        groups = wide_scales.numel()
        launch(
            _regroup, (cdiv(groups, _GROUPS),), values.view(torch.uint8), scales, wide.view(torch.uint8), wide_scales,
            groups, wide_scales.shape[1], wide_scales.stride(1),
            GROUPS=_GROUPS, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run


@functools.cache
def expert_rows(experts: int, alignment: int) -> Kernel:
    """ends, choices = where each expert's rows end, and which choice each row is for."""
    buckets = next_power_of_2(experts)

    def run(order: torch.Tensor, offsets: torch.Tensor, ends: torch.Tensor, choices: torch.Tensor) -> None:
        rows = choices.shape[0]
        launch(
            _expert_rows, (max(cdiv(rows, _ROWS), 1),), order, offsets, ends, choices, order.shape[0], rows, experts,
            ALIGNMENT=alignment, ROWS=_ROWS, BUCKETS=buckets,
        )  # fmt: skip

    return run
