"""The index logits in Triton (model_spec 3.5, 3.6).

A program has a tile of columns, whose keys it dequantises in registers, and multiplies it by 64 heads at once: two rows
of up to 32 heads, or one row. Tiles are the same for any number of rows, and heads are summed in one order.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.product import WARPS, fp4_tile, operand
from deepinfer.ops.triton.quantize import decode_ue8m0, spread, unpack_e2m1, widen

_COLUMNS = 128
_PAIRS = 8
"""Pairs of rows that share a tile of keys."""
_PAIRED = 32
"""Heads up to which two rows go together."""
_DEPTH = tl.constexpr(128)
_LANES = tl.constexpr(64)


@triton.jit
def _key_tile(values, scales, value_at, scale_at, live, COLUMNS: tl.constexpr):
    """Keys at these offsets in bytes, as an operand [COLUMNS, 128]; zeros where there is none."""
    byte = tl.arange(0, _DEPTH // 2)[None, :]
    codes = tl.load(values + value_at[:, None] + byte, mask=live[:, None], other=0)
    group = tl.arange(0, _DEPTH // 32)[None, :]
    sizes = tl.load(scales + scale_at[:, None] + group, mask=live[:, None], other=0)
    return operand(unpack_e2m1(codes, COLUMNS, _DEPTH) * spread(decode_ue8m0(sizes), COLUMNS, _DEPTH, 32))


@triton.jit
def _dense_tile(values, scales, start, column, total, COLUMNS: tl.constexpr):
    """The keys of entries `column` of a row whose first key is `start`."""
    key = start.to(tl.int64) + column
    return _key_tile(values, scales, key * 64, key * 4, (key >= 0) & (key < total), COLUMNS)


@triton.jit
def _weighted(keys, query, weight):
    """Each head's part of the logits: [COLUMNS, 64]."""
    return tl.maximum(tl.dot(keys, tl.trans(query)), 0.0) * weight[None, :]


@triton.jit
def _over_heads(parts, own):
    """The sum of the lanes that are a row's own."""
    return tl.sum(tl.where(own[None, :], parts, 0.0), 1)


@triton.jit
def _store_dense(logits, row, rows, stride, column, width, sums, start, length, total):
    key = start.to(tl.int64) + column
    there = (column < length) & (key >= 0) & (key < total)
    out = logits + row.to(tl.int64) * stride + column
    tl.store(out, tl.where(there, sums, float("-inf")), mask=(column < width) & (row < rows))


@triton.jit(do_not_specialize=["rows", "total", "width"])
def _pairs_logits(
    q, q_scales, weights, keys, key_scales, starts, lengths, logits, stride, rows, total, width,
    HEADS: tl.constexpr, COLUMNS: tl.constexpr, PAIRS: tl.constexpr, NEVER: tl.constexpr,
):  # fmt: skip
    begin = tl.program_id(1) * COLUMNS
    column = begin + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * (2 * PAIRS)
    lane = tl.arange(0, _LANES)
    head = lane % (_LANES // 2)
    lower = lane < _LANES // 2
    # The keys of the tile stay while rows have the same start.
    held = tl.full((), NEVER, tl.int64)
    tile = operand(tl.zeros([COLUMNS, _DEPTH], tl.float32))
    for pair in range(0, tl.minimum(PAIRS, (rows - first + 1) // 2)):
        row = first + 2 * pair
        second = tl.minimum(row + 1, rows - 1)
        start, start2 = tl.load(starts + row), tl.load(starts + second)
        length, length2 = tl.load(lengths + row), tl.load(lengths + second)
        sums = tl.zeros([COLUMNS], tl.float32)
        sums2 = tl.zeros([COLUMNS], tl.float32)
        if begin < tl.maximum(length, length2):
            own = row + lane // (_LANES // 2)
            live = (own < rows) & (head < HEADS)
            at = own.to(tl.int64) * HEADS + head
            query = fp4_tile(q, q_scales, at, live, 0, _DEPTH, _LANES, _DEPTH)
            weight = widen(tl.load(weights + at, mask=live, other=0.0))
            if start.to(tl.int64) != held:
                tile = _dense_tile(keys, key_scales, start, column, total, COLUMNS)
                held = start.to(tl.int64)
            parts = _weighted(tile, query, weight)
            sums = _over_heads(parts, live & lower)
            if start2 != start:
                parts = _weighted(_dense_tile(keys, key_scales, start2, column, total, COLUMNS), query, weight)
            sums2 = _over_heads(parts, live & (lane >= _LANES // 2))
        _store_dense(logits, row, rows, stride, column, width, sums, start, length, total)
        _store_dense(logits, row + 1, rows, stride, column, width, sums2, start2, length2, total)


@triton.jit(do_not_specialize=["pages", "total", "width"])
def _row_logits(
    q, q_scales, weights, values, scales, starts, tables, blocks, lengths, logits,
    stride, value_block, scale_block, table_stride, block_stride, pages, total, width,
    HEADS: tl.constexpr, SIZE: tl.constexpr, CANDIDATES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # SIZE: entries of a block of the cache, 0 where keys lie in a row; CANDIDATES: entries of a chosen block, or 0.
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live = column < width
    entry = column.to(tl.int64)
    if CANDIDATES > 0:
        block = tl.load(blocks + row * block_stride + column // CANDIDATES, mask=live, other=-1).to(tl.int64)
        entry = block * CANDIDATES + column % CANDIDATES
        live = live & (block >= 0)
    live = live & (entry < tl.load(lengths + row))
    if SIZE > 0:
        page = entry // SIZE
        live = live & (page < pages)
        held = tl.load(tables + row * table_stride + page, mask=live, other=-1).to(tl.int64)
        live = live & (held >= 0) & (held < total)
        value_at = held * value_block + entry % SIZE * 64
        scale_at = held * scale_block + entry % SIZE * 4
    else:
        key = tl.load(starts + row).to(tl.int64) + entry
        live = live & (key >= 0) & (key < total)
        value_at = key * 64
        scale_at = key * 4
    sums = tl.zeros([COLUMNS], tl.float32)
    if tl.max(live.to(tl.int32), 0) > 0:
        head = tl.arange(0, _LANES)
        at = row * HEADS + head
        query = fp4_tile(q, q_scales, at, head < HEADS, 0, _DEPTH, _LANES, _DEPTH)
        weight = widen(tl.load(weights + at, mask=head < HEADS, other=0.0))
        tile = _key_tile(values, scales, value_at, scale_at, live, COLUMNS)
        sums = _over_heads(_weighted(tile, query, weight), head < HEADS)
    out = logits + row * stride + column
    tl.store(out, tl.where(live, sums, float("-inf")), mask=column < width)


@functools.cache
def index_logits(heads: int) -> Kernel:
    """Column c is the key `starts` + c."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        key_scales: torch.Tensor,
        starts: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        if heads > _PAIRED:
            _by_row(heads, 0, 0, q, q_scales, weights, keys, key_scales, starts, None, None, lengths, logits)
            return
        rows, width = logits.shape
        launch(
            _pairs_logits, (cdiv(rows, 2 * _PAIRS), cdiv(width, _COLUMNS)),
            q.view(torch.uint8), q_scales, weights, keys.view(torch.uint8), key_scales, starts, lengths,
            logits, logits.stride(0), rows, keys.shape[0], width,
            HEADS=heads, COLUMNS=_COLUMNS, PAIRS=_PAIRS, NEVER=-(2**40), num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run


@functools.cache
def paged_index_logits(heads: int, size: int) -> Kernel:
    """Column c is at c % size of the block that the row's table has at c / size."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        values: torch.Tensor,
        scales: torch.Tensor,
        tables: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        _by_row(heads, size, 0, q, q_scales, weights, values, scales, None, tables, None, lengths, logits)

    return run


@functools.cache
def candidate_index_logits(heads: int, block_size: int) -> Kernel:
    """As `index_logits`; columns are the entries of the row's blocks."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        key_scales: torch.Tensor,
        starts: torch.Tensor,
        blocks: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        _by_row(heads, 0, block_size, q, q_scales, weights, keys, key_scales, starts, None, blocks, lengths, logits)

    return run


@functools.cache
def paged_candidate_index_logits(heads: int, block_size: int, size: int) -> Kernel:
    """As `paged_index_logits`; columns are the entries of the row's blocks."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        values: torch.Tensor,
        scales: torch.Tensor,
        tables: torch.Tensor,
        blocks: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        _by_row(heads, size, block_size, q, q_scales, weights, values, scales, None, tables, blocks, lengths, logits)

    return run


def _by_row(
    heads: int,
    size: int,
    block_size: int,
    q: torch.Tensor,
    q_scales: torch.Tensor,
    weights: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    starts: torch.Tensor | None,
    tables: torch.Tensor | None,
    blocks: torch.Tensor | None,
    lengths: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    rows, width = logits.shape
    launch(
        _row_logits, (rows, cdiv(width, _COLUMNS)),
        q.view(torch.uint8), q_scales, weights, values.view(torch.uint8), scales, starts, tables, blocks, lengths,
        logits, logits.stride(0), values.stride(0), scales.stride(0),
        0 if tables is None else tables.stride(0), 0 if blocks is None else blocks.stride(0),
        0 if tables is None else tables.shape[1], values.shape[0], width,
        HEADS=heads, SIZE=size, CANDIDATES=block_size, COLUMNS=_COLUMNS, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
