"""The routed experts in Triton (model_spec 2.3, 3.9). Nothing here waits for the device: grids are upper bounds."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.product import BLOCK_K, BLOCK_M, WARPS, fp4_tile, fp8_tile, rounded_like
from deepinfer.ops.triton.quantize import narrow, widen

_BLOCK = 128
_CHUNK = 1024
_COLUMNS = 64


@triton.jit
def _choices(ids, total, experts, BLOCK: tl.constexpr):
    """Of this program's choices: (position, expert, how many before and behind it have the same expert).

    What is no choice goes to the expert behind the last one; positions from `total` on to none that there is.
    """
    own = tl.arange(0, BLOCK)
    position = tl.program_id(0) * BLOCK + own
    chosen = tl.load(ids + position, mask=position < total, other=-1)
    expert = tl.where((chosen >= 0) & (chosen < experts), chosen, experts)
    expert = tl.where(position < total, expert, experts + 1)
    same = expert[:, None] == expert[None, :]
    before = tl.sum((same & (own[None, :] < own[:, None])).to(tl.int32), axis=1)
    behind = tl.sum((same & (own[None, :] > own[:, None])).to(tl.int32), axis=1)
    return position, expert, before, behind


@triton.jit(do_not_specialize=["total", "blocks"])
def _count(ids, counts, total, blocks, experts, BLOCK: tl.constexpr):
    """counts[expert, block] of what is there; zeros are there already."""
    position, expert, before, behind = _choices(ids, total, experts, BLOCK)
    last = (position < total) & (behind == 0)
    tl.store(counts + expert.to(tl.int64) * blocks + tl.program_id(0), before + 1, mask=last)


@triton.jit(do_not_specialize=["blocks"])
def _sum_up(counts, totals, blocks, CHUNK: tl.constexpr):
    """counts[expert, block] becomes what is in earlier blocks, totals[expert] what is in all."""
    expert = tl.program_id(0)
    row = counts + expert.to(tl.int64) * blocks
    running = tl.zeros([1], tl.int32)
    begin = tl.program_id(1) * CHUNK
    while begin < blocks:
        block = begin + tl.arange(0, CHUNK)
        count = tl.load(row + block, mask=block < blocks, other=0)
        upto = tl.cumsum(count, axis=0)
        tl.store(row + block, running + upto - count, mask=block < blocks)
        running += tl.sum(count, axis=0)
        begin += CHUNK
    tl.store(totals + expert + tl.arange(0, 1), running)


@triton.jit(do_not_specialize=["total", "blocks"])
def _place(
    ids, counts, totals, order, offsets, total, blocks, experts, BLOCK: tl.constexpr, BUCKETS: tl.constexpr
):  # fmt: skip
    position, expert, before, _ = _choices(ids, total, experts, BLOCK)
    live = position < total
    bucket = tl.arange(0, BUCKETS)
    of_all = tl.load(totals + bucket, mask=bucket <= experts, other=0)
    smaller = tl.sum(tl.where(bucket[None, :] < expert[:, None], of_all[None, :], 0), axis=1)
    earlier = tl.load(counts + expert.to(tl.int64) * blocks + tl.program_id(0), mask=live, other=0)
    tl.store(order + smaller + earlier + before, tl.where(expert < experts, position, -1), mask=live)
    if tl.program_id(0) == 0:
        upto = tl.cumsum(of_all, axis=0)
        tl.store(offsets + bucket, upto - of_all, mask=bucket <= experts)


@functools.cache
def expert_order(experts: int) -> Kernel:
    """order, offsets = the flat choices sorted by expert, and where each expert's begin."""
    buckets = next_power_of_2(experts + 1)

    def run(ids: torch.Tensor, order: torch.Tensor, offsets: torch.Tensor) -> None:
        total = ids.numel()
        blocks = max(cdiv(total, _BLOCK), 1)
        counts = torch.zeros((experts + 1) * blocks, dtype=torch.int32, device=ids.device)
        totals = torch.empty(experts + 1, dtype=torch.int32, device=ids.device)
        launch(_count, (blocks,), ids, counts, total, blocks, experts, BLOCK=_BLOCK)
        launch(_sum_up, (experts + 1, 1), counts, totals, blocks, CHUNK=_CHUNK)
        launch(
            _place, (blocks,), ids, counts, totals, order, offsets, total, blocks, experts,
            BLOCK=_BLOCK, BUCKETS=buckets, num_warps=8,
        )  # fmt: skip

    return run


@triton.jit
def _tile_of(offsets, positions, experts, tile, BLOCK_M: tl.constexpr, BUCKETS: tl.constexpr):
    """The tile-th tile of all experts' positions: (its expert, where it begins, where its expert's positions end).

    Behind the last expert's tiles come those of the positions of none, whose expert is `experts`; then there is none.
    """
    bucket = tl.arange(0, BUCKETS)
    begin = tl.load(offsets + bucket, mask=bucket <= experts, other=0)
    end = tl.load(offsets + bucket + 1, mask=bucket < experts, other=0)
    begin = tl.minimum(tl.maximum(begin, 0), positions)
    end = tl.minimum(tl.where(bucket == experts, positions, end), positions)
    tiles = tl.where(bucket <= experts, tl.maximum(end - begin + BLOCK_M - 1, 0) // BLOCK_M, 0)
    upto = tl.cumsum(tiles, axis=0)
    expert = tl.sum((upto <= tile).to(tl.int32), axis=0)
    own = bucket == expert
    first = tl.sum(tl.where(own, begin - (upto - tiles) * BLOCK_M, 0), axis=0) + tile * BLOCK_M
    return expert, first, tl.sum(tl.where(own, end, 0), axis=0)


@triton.jit(do_not_specialize=["rows_there", "positions"])
def _expert_linear(
    values, scales, rows, offsets, weight, weight_scales, out,
    rows_there, positions, experts, outputs, weight_stride, scale_stride,
    DEPTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    expert, first, end = _tile_of(offsets, positions, experts, tl.program_id(1), BLOCK_M, BUCKETS)
    position = first + tl.arange(0, BLOCK_M)
    inside = position < end
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if expert < experts:
        row = tl.load(rows + position, mask=inside, other=-1)
        live = (row >= 0) & (row < rows_there)
        row = row.to(tl.int64)
        own = weight + expert.to(tl.int64) * weight_stride
        own_scales = weight_scales + expert.to(tl.int64) * scale_stride
        for start in range(0, DEPTH, BLOCK_K):
            a = fp8_tile(values, scales, row, live, start, DEPTH, 1, BLOCK_M, BLOCK_K)
            b = fp4_tile(own, own_scales, column.to(tl.int64), column < outputs, start, DEPTH, BLOCK_N, BLOCK_K)
            sums = tl.dot(a, tl.trans(b), sums)
        sums = tl.where(live[:, None], sums, 0.0)
    mask = inside[:, None] & (column < outputs)[None, :]
    tl.store(out + position.to(tl.int64)[:, None] * outputs + column[None, :], rounded_like(out, sums), mask=mask)


@functools.cache
def expert_linear(experts: int, o: int, k: int) -> Kernel:
    """out[i] = values[rows[i]] * weight[e]^T for the expert e that position i belongs to."""
    buckets = next_power_of_2(experts + 1)

    def run(
        values: torch.Tensor,
        scales: torch.Tensor,
        rows: torch.Tensor,
        offsets: torch.Tensor,
        weight: torch.Tensor,
        weight_scales: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        positions = rows.shape[0]
        # Every expert, and the positions of none, may leave one tile partly filled; none is empty.
        tiles = min(positions, positions // BLOCK_M + experts + 1)
        launch(
            _expert_linear, (cdiv(o, _COLUMNS), tiles),
            values.view(torch.uint8), scales, rows, offsets, weight.view(torch.uint8), weight_scales, out,
            values.shape[0], positions, experts, o, weight.stride(0), weight_scales.stride(0),
            DEPTH=k, BLOCK_M=BLOCK_M, BLOCK_N=_COLUMNS, BLOCK_K=BLOCK_K, BUCKETS=buckets,
            num_warps=WARPS, num_stages=3,
        )  # fmt: skip

    return run


@triton.jit(do_not_specialize=["total"])
def _invert(order, place, total, BLOCK: tl.constexpr):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    choice = tl.load(order + position, mask=position < total, other=-1)
    tl.store(place + choice, position, mask=(choice >= 0) & (choice < total))


@triton.jit
def _combine(shared, routed, place, out, width, TOPK: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < width
    total = widen(tl.load(shared + row * width + column, mask=mask, other=0.0))
    for rank in tl.static_range(TOPK):
        at = tl.load(place + row * TOPK + rank).to(tl.int64)
        own = tl.load(routed + at * width + column, mask=mask & (at >= 0), other=0.0)
        total = tl.where(at >= 0, total + widen(own), total)
    tl.store(out + row * width + column, narrow(total), mask=mask)


@functools.cache
def combine(topk: int) -> Kernel:
    """out = shared + routed of rank 0 + ... in float32."""

    def run(shared: torch.Tensor, routed: torch.Tensor, order: torch.Tensor, out: torch.Tensor) -> None:
        rows, width = shared.shape
        total = order.shape[0]
        place = torch.full((total,), -1, dtype=torch.int32, device=order.device)
        launch(_invert, (cdiv(total, _CHUNK),), order, place, total, BLOCK=_CHUNK)
        columns = min(next_power_of_2(width), 1024)
        launch(
            _combine, (rows, cdiv(width, columns)), shared, routed, place, out, width, TOPK=topk, COLUMNS=columns
        )  # fmt: skip

    return run
