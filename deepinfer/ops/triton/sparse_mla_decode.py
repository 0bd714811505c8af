"""Attention over chosen keys in caches in Triton (model_spec 3.3, 3.7, 4.2): the kernels of decode.

Few rows are divided over programs, in a way that leaves every sum as it is: `_logits` takes tiles of 64 keys apart, and
`_values`, which goes through all tiles in their order, takes columns of the values apart. Where that would be more
programs than multiprocessors, a row is left whole, and `_whole` reads each of its keys once. All dequantise keys in
registers. How rows are divided follows from their number and the device, and the bits do not depend on it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from deepinfer.ops.launch import cdiv, launch, multiprocessors
from deepinfer.ops.triton import softmax_step
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.product import WARPS, operand
from deepinfer.ops.triton.quantize import decode, decode_e4m3, decode_ue8m0, spread
from deepinfer.ops.triton.softmax_step import LOG2_E

HEADS = 64
KEYS = 64
_WIDTH = tl.constexpr(512)
_PARTS = 64, 128, 256
"""Columns of values that a program of `_values` may have."""
_STAGES = 3
"""One for a tile's list of entries, one for the entries, one for the products."""
_LISTS = [f"{name}{one}" for name in ("width", "row", "end", "size") for one in (1, 2)]
_INDICES = ["indices1", "indices2"]
"""A row of them begins anywhere."""


class Set(NamedTuple):
    """A list of entries [n, k] and the cache that they are in: [blocks, size, 1, bytes] in this format."""

    indices: torch.Tensor
    cache: torch.Tensor
    form: str

    def arguments(self) -> tuple[Any, ...]:
        """Cache and list; width and row stride of the list; entries, entries a block and block stride of the cache."""
        blocks, size = self.cache.shape[:2]
        shape = self.indices.shape[1], self.indices.stride(0), blocks * size, max(size, 1), self.cache.stride(0)
        return self.cache, self.indices, *shape

    def tiles(self) -> int:
        return cdiv(self.indices.shape[1], KEYS)


@triton.jit
def _entries(indices, tile, width, end, KEYS: tl.constexpr):
    """The entries that a list names in a tile of KEYS columns; -1 for what is no key."""
    column = tile * KEYS + tl.arange(0, KEYS)
    entry = tl.load(indices + column, mask=column < width, other=-1)
    return tl.where(entry < end, entry, -1)


@triton.jit
def _bytes(cache, entry, size, block_stride, FIRST, FMT: tl.constexpr, COUNT: tl.constexpr):
    """COUNT bytes of entries from FIRST on: uint8 [KEYS, COUNT]; zeros where there is no key."""
    EACH: tl.constexpr = _WIDTH + _WIDTH // 32 if FMT == "e4m3" else _WIDTH // 2 + _WIDTH // 16
    block = entry // size
    at = cache + block.to(tl.int64) * block_stride + (entry - block * size).to(tl.int64) * EACH
    return tl.load(at[:, None] + (tl.arange(0, COUNT) + FIRST)[None, :], mask=(entry >= 0)[:, None], other=0)


@triton.jit
def _codes(cache, entry, size, block_stride, PART, FMT: tl.constexpr, COLUMNS: tl.constexpr):
    """The codes of a part of COLUMNS of entries."""
    COUNT: tl.constexpr = COLUMNS if FMT == "e4m3" else COLUMNS // 2
    return _bytes(cache, entry, size, block_stride, PART * COUNT, FMT, COUNT)


@triton.jit
def _scales(cache, entry, size, block_stride, PART, FMT: tl.constexpr, COLUMNS: tl.constexpr):
    """The scales of a part of COLUMNS of entries."""
    CODES: tl.constexpr = _WIDTH if FMT == "e4m3" else _WIDTH // 2
    COUNT: tl.constexpr = COLUMNS // 32 if FMT == "e4m3" else COLUMNS // 16
    return _bytes(cache, entry, size, block_stride, CODES + PART * COUNT, FMT, COUNT)


@triton.jit
def _keys(codes, scales, FMT: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr):
    """Keys, dequantised: an operand [KEYS, COLUMNS]."""
    GROUP: tl.constexpr = 32 if FMT == "e4m3" else 16
    numbers = decode_ue8m0(scales) if FMT == "e4m3" else decode_e4m3(scales)
    # The product is exact in bfloat16 too, and takes half the registers there.
    return operand(decode(codes, FMT, KEYS, COLUMNS)) * spread(operand(numbers), KEYS, COLUMNS, GROUP)


@triton.jit
def _tile_logits(q, keys, entry, scale):
    """Logits [HEADS, KEYS] of a tile, as powers of two; -inf where there is no key."""
    return tl.where((entry >= 0)[None, :], tl.dot(q, tl.trans(keys)) * scale, float("-inf"))


@triton.jit
def _queries(q, row, head, heads):
    """The queries of a row's heads, as an operand [HEADS, 512]; zeros where there is no head."""
    at = (row * heads + head)[:, None] * _WIDTH + tl.arange(0, _WIDTH)[None, :]
    return operand(tl.load(q + at, mask=(head < heads)[:, None], other=0.0))


@triton.jit
def _logits_over(
    q, logits, scale, FIRST, LAST, cache, indices, width, end, size, block_stride, across,
    FMT: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Store the logits of the tiles FIRST to LAST of a list, `across` apart."""
    place = tl.arange(0, HEADS)[:, None] * KEYS + tl.arange(0, KEYS)[None, :]
    for tile in range(FIRST, LAST):
        entry = _entries(indices, tile, width, end, KEYS)
        codes = _codes(cache, entry, size, block_stride, 0, FMT, _WIDTH)
        scales = _scales(cache, entry, size, block_stride, 0, FMT, _WIDTH)
        keys = _keys(codes, scales, FMT, KEYS, _WIDTH)
        tl.store(logits + tile * across + place, _tile_logits(q, keys, entry, scale))


@triton.jit(do_not_specialize=["heads", "each", "tiles1", "tiles2", *_LISTS], do_not_specialize_on_alignment=_INDICES)
def _logits(
    q, logits, heads, scale, each, tiles1, tiles2,
    cache1, indices1, width1, row1, end1, size1, stride1, cache2, indices2, width2, row2, end2, size2, stride2,
    FMT1: tl.constexpr, FMT2: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Logits float32 [rows, tiles1 + tiles2, groups, HEADS, KEYS], as powers of two; -inf where there is no key.

    A program has a row, a group of HEADS heads, and `each` tiles.
    """
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * each
    group = tl.program_id(2)
    queries = _queries(q, row, group * HEADS + tl.arange(0, HEADS), heads)
    across = tl.num_programs(2).to(tl.int64) * (HEADS * KEYS)
    logits += row * (tiles1 + tiles2) * across + group * (HEADS * KEYS)
    _logits_over(
        queries, logits, scale, first, tl.minimum(first + each, tiles1),
        cache1, indices1 + row * row1, width1, end1, size1, stride1, across, FMT1, HEADS, KEYS,
    )  # fmt: skip
    _logits_over(
        queries, logits + tiles1 * across, scale,
        tl.maximum(first - tiles1, 0), tl.minimum(first + each - tiles1, tiles2),
        cache2, indices2 + row * row2, width2, end2, size2, stride2, across, FMT2, HEADS, KEYS,
    )  # fmt: skip


@triton.jit
def _store(sums, total, largest, sink, out, row, head, heads, log2_e, FIRST, COLUMNS: tl.constexpr):
    """Store what COLUMNS of the values, from FIRST on, come to."""
    live = head < heads
    sinks = tl.load(sink + head, mask=live, other=0.0) * log2_e
    at = (row * heads + head)[:, None] * _WIDTH + FIRST + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, softmax_step.finish(sums, total, largest, sinks), mask=live[:, None])


@triton.jit
def _values_over(
    sums, total, largest, logits, PART, tiles, cache, indices, width, end, size, block_stride, across,
    FMT: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Go on with sums, total and largest over a list."""
    place = tl.arange(0, HEADS)[:, None] * KEYS + tl.arange(0, KEYS)[None, :]
    # Scales are too few for copies in the background, so they are read a tile ahead here, and their entries two.
    scales = _scales(cache, _entries(indices, 0, width, end, KEYS), size, block_stride, PART, FMT, COLUMNS)
    coming = _entries(indices, 1, width, end, KEYS)
    for tile in range(0, tiles):
        entry = _entries(indices, tile, width, end, KEYS)
        own = scales
        scales = _scales(cache, coming, size, block_stride, PART, FMT, COLUMNS)
        coming = _entries(indices, tile + 2, width, end, KEYS)
        keys = _keys(_codes(cache, entry, size, block_stride, PART, FMT, COLUMNS), own, FMT, KEYS, COLUMNS)
        z = tl.load(logits + tile * across + place)
        sums, total, largest = softmax_step.step(sums, total, largest, z, keys)
    return sums, total, largest


@triton.jit(do_not_specialize=["heads", "tiles1", "tiles2", *_LISTS], do_not_specialize_on_alignment=_INDICES)
def _values(
    logits, sink, out, heads, log2_e, tiles1, tiles2,
    cache1, indices1, width1, row1, end1, size1, stride1, cache2, indices2, width2, row2, end2, size2, stride2,
    FMT1: tl.constexpr, FMT2: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program has a row, a group of HEADS heads, and COLUMNS of the values."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    group = tl.program_id(2)
    across = tl.num_programs(2).to(tl.int64) * (HEADS * KEYS)
    logits += row * (tiles1 + tiles2) * across + group * (HEADS * KEYS)
    sums, total, largest = softmax_step.start(HEADS, COLUMNS)
    sums, total, largest = _values_over(
        sums, total, largest, logits, part, tiles1,
        cache1, indices1 + row * row1, width1, end1, size1, stride1, across, FMT1, HEADS, KEYS, COLUMNS,
    )  # fmt: skip
    sums, total, largest = _values_over(
        sums, total, largest, logits + tiles1 * across, part, tiles2,
        cache2, indices2 + row * row2, width2, end2, size2, stride2, across, FMT2, HEADS, KEYS, COLUMNS,
    )  # fmt: skip
    head = group * HEADS + tl.arange(0, HEADS)
    _store(sums, total, largest, sink, out, row, head, heads, log2_e, part * COLUMNS, COLUMNS)


@triton.jit
def _whole_over(
    q, sums, total, largest, scale, tiles, cache, indices, width, end, size, block_stride,
    FMT: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Go on with sums, total and largest over a list, whose keys are read once."""
    for tile in range(0, tiles):
        entry = _entries(indices, tile, width, end, KEYS)
        codes = _codes(cache, entry, size, block_stride, 0, FMT, _WIDTH)
        scales = _scales(cache, entry, size, block_stride, 0, FMT, _WIDTH)
        keys = _keys(codes, scales, FMT, KEYS, _WIDTH)
        z = _tile_logits(q, keys, entry, scale)
        sums, total, largest = softmax_step.step(sums, total, largest, z, keys)
    return sums, total, largest


@triton.jit(do_not_specialize=["heads", "tiles1", "tiles2", *_LISTS], do_not_specialize_on_alignment=_INDICES)
def _whole(
    q, sink, out, heads, scale, log2_e, tiles1, tiles2,
    cache1, indices1, width1, row1, end1, size1, stride1, cache2, indices2, width2, row2, end2, size2, stride2,
    FMT1: tl.constexpr, FMT2: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """A program has a row and a group of HEADS heads."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    queries = _queries(q, row, head, heads)
    sums, total, largest = softmax_step.start(HEADS, _WIDTH)
    sums, total, largest = _whole_over(
        queries, sums, total, largest, scale, tiles1,
        cache1, indices1 + row * row1, width1, end1, size1, stride1, FMT1, KEYS,
    )  # fmt: skip
    sums, total, largest = _whole_over(
        queries, sums, total, largest, scale, tiles2,
        cache2, indices2 + row * row2, width2, end2, size2, stride2, FMT2, KEYS,
    )  # fmt: skip
    _store(sums, total, largest, sink, out, row, head, heads, log2_e, 0, _WIDTH)


def attend(
    q: torch.Tensor, first: Set, second: Set | None, sink: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    """Attention of q [n, h, 512] over the entries of one or two lists, into out [n, h, 512] float32."""
    rows, heads, width = q.shape
    groups = cdiv(heads, HEADS)
    # Without a second list there is one of no columns, so that both ways have the same compiled kernels.
    second = second or Set(first.indices[:, :0], first.cache, first.form)
    tiles = (first.tiles(), second.tiles())
    lists = *tiles, *first.arguments(), *second.arguments()
    constants = {
        "FMT1": first.form, "FMT2": second.form, "HEADS": HEADS, "KEYS": KEYS,
        "num_warps": WARPS, "num_stages": _STAGES, "enable_fp_fusion": False, "launch_pdl": True,
    }  # fmt: skip
    each, columns = _division(rows * groups, sum(tiles), multiprocessors(q.device))
    if columns == width:
        launch(_whole, (rows, groups), q, sink, out, heads, scale * LOG2_E, LOG2_E, *lists, **constants)
        return
    logits = torch.empty((rows, sum(tiles), groups, HEADS, KEYS), dtype=torch.float32, device=q.device)
    grid = (rows, cdiv(sum(tiles), each), groups)
    launch(_logits, grid, q, logits, heads, scale * LOG2_E, each, *lists, **constants)
    grid = (rows, width // columns, groups)
    launch(_values, grid, logits, sink, out, heads, LOG2_E, *lists, COLUMNS=columns, **constants)


def _division(rows: int, tiles: int, programs: int) -> tuple[int, int]:
    """Tiles that a program of `_logits` has, and columns one of `_values`, so that `programs` at once are enough.

    All 512 columns: a row is left whole. A program of either kernel takes half as long as one of `_whole`, so that a
    second turn of them would cost more than leaving rows whole.
    """
    each = cdiv(tiles, max(programs // max(rows, 1), 1)) or 1
    return each, next((columns for columns in _PARTS if rows * (512 // columns) <= programs), 512)
