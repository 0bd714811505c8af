"""The routed experts in Triton (model_spec 2.3, 3.9). Nothing here waits for the device: grids are upper bounds."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.product import rounded_like
from deepinfer.ops.triton.quantize import narrow, widen
from deepinfer.ops.triton.weight_product import ROW_COLUMNS, Tiles, decode_row, decoded, weight_sums

_BLOCK = 128
_CHUNK = 1024
_TILES = 16
"""Of the table of tiles, which one program writes."""
_FEW = Tiles(m=64, n=16, k=256, warps=4, stages=3, registers=128)
_MANY = Tiles(m=128, n=64, k=64, warps=4, stages=4, registers=168)


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


@triton.jit(do_not_specialize=["rows", "positions", "tiles", "groups"])
def _prepare(
    values, scales, x, offsets, table, rows, positions, tiles, experts, groups,
    N: tl.constexpr, BUCKETS: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rows as `decode_row` writes them, and behind their programs those that write the table of tiles."""
    await_inputs()
    parts = (groups * 32 + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    if program < rows * parts:
        decode_row(values, scales, x, (program // parts).to(tl.int64), program % parts, groups, True, COLUMNS)
    else:
        _write_tiles(offsets, table, program - rows * parts, positions, tiles, experts, N, BUCKETS, TILES)


@triton.jit
def _write_tiles(
    offsets, table, program, positions, tiles, experts, N: tl.constexpr, BUCKETS: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """table[tile] = (its expert, where it begins, where its expert's positions end, nothing), TILES a program.

    A tile is of N positions. Behind the last expert's tiles come those of the positions of none, whose expert is
    `experts`; then those of no positions, which end where they begin.
    """
    bucket = tl.arange(0, BUCKETS)
    begin = tl.load(offsets + bucket, mask=bucket <= experts, other=0)
    end = tl.load(offsets + bucket + 1, mask=bucket < experts, other=0)
    begin = tl.minimum(tl.maximum(begin, 0), positions)
    end = tl.minimum(tl.where(bucket == experts, positions, end), positions)
    count = tl.where(bucket <= experts, tl.maximum(end - begin + N - 1, 0) // N, 0)
    upto = tl.cumsum(count, axis=0)
    tile = program * TILES + tl.arange(0, TILES)
    own = ((upto - count)[None, :] <= tile[:, None]) & (upto[None, :] > tile[:, None])
    expert = tl.sum(tl.where(own, bucket[None, :], 0), axis=1)
    first = tl.sum(tl.where(own, (begin - (upto - count) * N)[None, :], 0), axis=1) + tile * N
    last = tl.sum(tl.where(own, end[None, :], 0), axis=1)
    there = last > 0
    mask = tile < tiles
    tl.store(table + tile * 4, tl.where(there, expert, experts), mask=mask)
    tl.store(table + tile * 4 + 1, tl.where(there, first, 0), mask=mask)
    tl.store(table + tile * 4 + 2, last, mask=mask)


@triton.jit(do_not_specialize=["rows_there", "units"])
def _expert_linear(
    x, rows, table, weight, weight_scales, out, rows_there, experts, outputs, units, weight_stride, scale_stride,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    await_inputs()
    own = table + tl.program_id(1) * 4
    expert, first, end = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    if first < end:
        position = first + tl.arange(0, N)
        inside = position < end
        column = tl.program_id(0) * M + tl.arange(0, M)
        mask = inside[None, :] & (column < outputs)[:, None]
        target = out + position.to(tl.int64)[None, :] * outputs + column[:, None]
        if expert < experts:
            row = tl.load(rows + position, mask=inside, other=-1)
            live = (row >= 0) & (row < rows_there)
            sums = weight_sums(
                x, row.to(tl.int64), live,
                weight + expert.to(tl.int64) * weight_stride, weight_scales + expert.to(tl.int64) * scale_stride,
                column, column < outputs, units, True, 1, EVEN, AHEAD, M, N, K,
            )  # fmt: skip
            tl.store(target, rounded_like(out, tl.where(live[None, :], sums, 0.0)), mask=mask)
        else:
            tl.store(target, rounded_like(out, tl.zeros([M, N], tl.float32)), mask=mask)


def expert_tiles(positions: int, experts: int) -> Tiles:
    """For so many positions of so many experts: few rows an expert at a time, or many."""
    return _FEW if positions <= _FEW.n * experts else _MANY


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
        positions, there = rows.shape[0], values.shape[0]
        tiles = expert_tiles(positions, experts)
        # Every expert, and the positions of none, may leave one tile partly filled; none is empty.
        count = min(positions, positions // tiles.n + experts + 1)
        x = decoded(there, k, values.device)
        table = torch.empty((count, 4), dtype=torch.int32, device=values.device)
        launch(
            _prepare, (there * cdiv(k, ROW_COLUMNS) + cdiv(count, _TILES),), values.view(torch.uint8), scales, x,
            offsets, table, there, positions, count, experts, k // 32,
            N=tiles.n, BUCKETS=buckets, TILES=_TILES, COLUMNS=ROW_COLUMNS, launch_pdl=True,
        )  # fmt: skip
        launch(
            _expert_linear, (cdiv(o, tiles.m), count), x, rows, table, weight.view(torch.int16), weight_scales, out,
            there, experts, o, tiles.units(o, k), weight.stride(0) // 2, weight_scales.stride(0),
            **tiles.constants(o, k),
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
