"""What kernels over rows share: how many rows a program takes, and where a slot of a paged cache lies."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from deepinfer.ops.launch import multiprocessors, next_power_of_2

ELEMENTS_PER_WARP = 1024
_FEW = 4


def tile(width: int) -> tuple[int, int, int]:
    """(rows, columns, warps) of a program for rows of `width` values.

    Every thread holds 32 values, so four loads of 16 bytes of bfloat16 are on their way at once. Rows of up to 1024
    values belong to one warp: sums over them need no shared memory.
    """
    columns = max(next_power_of_2(width), 128)
    rows = max(ELEMENTS_PER_WARP // columns, 1)
    return rows, columns, rows * columns // ELEMENTS_PER_WARP


def tile_of_few(width: int) -> tuple[int, int, int]:
    """As `tile`, for so few rows that what counts is how long one takes: a program has one, or 256 values."""
    rows, columns, warps = tile(width)
    return max(min(rows, 256 // columns), 1), columns, warps


def few(rows: int, device: torch.device) -> bool:
    """Whether a device would be idle for the most part if each program took several of so many rows."""
    return rows < _FEW * multiprocessors(device)


def levels(columns: int) -> int:
    """LEVELS of rms.sum_of_squares."""
    return (columns // 16).bit_length() - 1


@triton.jit
def one_a_row(pointer, first, rows, EACH: tl.constexpr, ROWS: tl.constexpr):
    """pointer[row // EACH] for ROWS rows from `first` on, as [ROWS, 1]; -1 for rows from `rows` on.

    Loaded as a vector: a load of [ROWS, 1] would be repeated for every register of the rows' tile.
    """
    row = first + tl.arange(0, ROWS)
    return tl.load(pointer + row // EACH, mask=row < rows, other=-1)[:, None]


@triton.jit
def locate(slot, live, end, BLOCK: tl.constexpr):
    """Slots of a paged cache -> (whether they are in it, their block as int64, their place in the block).

    live: which rows there are. end: num_blocks * BLOCK, the slots that there are.
    """
    inside = live & (slot >= 0) & (slot < end)
    kept = tl.where(inside, slot, 0)
    return inside, (kept // BLOCK).to(tl.int64), kept % BLOCK
