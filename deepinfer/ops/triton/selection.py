"""`select_topk` and `block_maxima` in Triton (model_spec 3.5, 3.6).

The selection is a tournament of tiles. A program holds a tile of a row in registers, finds its k-th largest score by
bisection, and writes the columns of the k best, ascending. Where a row has several tiles, what they chose is the row of
the next round; columns stay in order, so that ties still go to the lower one. Scores are read from memory once.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.quantize import widen
from deepinfer.ops.triton.sample_values import LOWEST_ORDER, order

_TILES = (2048, 4), (8192, 8), (16384, 16)
"""Columns of a tile (at most 2^14: two counts of them share an int32) and its warps."""
_BLOCKS = 512
"""Blocks of a program of `block_maxima`."""
_SLOTS = tl.constexpr(1024)
_EIGHT = tl.constexpr(8)


@triton.jit
def _threshold(key, k):
    """The largest order that at least k keys reach, or one that exactly k do; the lowest that counts if fewer do."""
    low = tl.full((), 0, tl.int64) + (LOWEST_ORDER + 1)
    enough = tl.sum((key > LOWEST_ORDER).to(tl.int32), 0) > k
    high = tl.where(enough, tl.max(key, 0).to(tl.int64), low)
    while low < high:
        middle = (low + high + 1) >> 1
        count = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0)
        low = tl.where(count >= k, middle, low)
        high = tl.where(count > k, high, tl.where(count == k, middle, middle - 1))
    return low.to(tl.int32)


@triton.jit(do_not_specialize=["width", "entries", "k", "level"])
def _select(
    scores, stride, lengths, listed, columns, width, entries, k, level,
    LISTED: tl.constexpr, WHOLE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    # How many entries this round has: columns of the row, or what the tiles of the round before wrote.
    live = tl.minimum(tl.maximum(tl.load(lengths + row), 0), width)
    for _ in range(0, level):
        live = (live + TILE - 1) // TILE * k
    # A tile without an entry writes nothing, as nobody reads it, unless it is the row's first.
    if (part == 0) | (part * TILE < live):
        place = part * TILE + tl.arange(0, TILE)
        inside = place < live
        read = inside
        column = place
        if WHOLE:
            # Eights are read as a whole, which lie within the row: a mask that cuts them would make loads narrow.
            read = place // _EIGHT * _EIGHT < live
        if LISTED:
            column = tl.load(listed + row * entries + place, mask=inside, other=-1)
            inside = column >= 0
            read = inside
        score = widen(tl.load(scores + row * stride + column, mask=read, other=float("-inf")))
        key = tl.where(inside & (score == score), order(score), LOWEST_ORDER)
        threshold = _threshold(key, k)
        above = (key > threshold).to(tl.int32)
        tied = (key == threshold).to(tl.int32)
        ties = k - tl.sum(above, 0)
        seen = tl.cumsum(above + (tied << 16), 0)
        tie = seen >> 16
        chosen = (above == 1) | ((tied == 1) & (tie <= ties))
        out = columns + (row * tl.num_programs(1) + part) * k
        tl.store(out + (seen & 0xFFFF) + tl.minimum(tie, ties) - 1, column, mask=chosen)
        count = tl.sum(chosen.to(tl.int32), 0)
        for start in range(count, k, _SLOTS):
            slot = start + tl.arange(0, _SLOTS)
            tl.store(out + slot, tl.full([_SLOTS], -1, tl.int32), mask=slot < k)


@functools.cache
def select_topk(k: int) -> Kernel:
    """The columns of the k largest scores of each row, ascending; ties go to the lower column."""

    def run(scores: torch.Tensor, lengths: torch.Tensor, columns: torch.Tensor) -> None:
        rows, width = scores.shape
        tile, warps = next((one for one in _TILES if width <= one[0]), _TILES[-1])
        listed, entries, level = None, width, 0
        while True:
            parts = max(cdiv(entries, tile), 1)
            out = columns
            if parts > 1:
                out = torch.empty((rows, parts * k), dtype=torch.int32, device=columns.device)
            launch(
                _select, (rows, parts), scores, scores.stride(0), lengths, listed, out, width, entries, k, level,
                LISTED=listed is not None, WHOLE=listed is None and width % 8 == 0, TILE=tile, num_warps=warps,
            )  # fmt: skip
            if parts == 1:
                return
            listed, entries, level = out, parts * k, level + 1

    return run


@triton.jit(do_not_specialize=["width", "count"])
def _maxima(
    logits, stride, lengths, scores, out_stride, blocks, width, count,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(lengths + row), 0), width)
    there = (length + SIZE - 1) // SIZE
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = column < length
    # Blocks that lie within the row are read as a whole: a mask that cuts them would make loads narrow.
    read = (block < there)[:, None] if WHOLE else inside
    logit = tl.load(logits + row * stride + column, mask=read, other=float("-inf"))
    largest = tl.max(tl.where(inside & (logit == logit), logit, float("-inf")), 1)
    score = tl.where(block == there - 1, float("inf"), largest)
    tl.store(scores + row * out_stride + block, score, mask=block < count)
    if tl.program_id(1) == 0:
        tl.store(blocks + row, there)


@functools.cache
def block_maxima(block_size: int) -> Kernel:
    """The largest logit of each block; plus infinity for the last one."""

    def run(logits: torch.Tensor, lengths: torch.Tensor, scores: torch.Tensor, blocks: torch.Tensor) -> None:
        width, count = logits.shape[1], scores.shape[1]
        launch(
            _maxima, (logits.shape[0], max(cdiv(count, _BLOCKS), 1)), logits, logits.stride(0), lengths,
            scores, scores.stride(0), blocks, width, count,
            SIZE=block_size, WHOLE=width % block_size == 0, BLOCKS=_BLOCKS, num_warps=8,
        )  # fmt: skip

    return run
