"""Integer arithmetic that the index kernels share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE, _LOOKUPS = 4096, 512


@triton.jit
def floor_mod(value, divisor):
    """value mod divisor (positive), never negative: Triton's % has the sign of the value."""
    rest = value % divisor
    return tl.where(rest < 0, rest + divisor, rest)


@triton.jit
def split(value, DIVISOR: tl.constexpr, SHIFT: tl.constexpr):
    """(value / DIVISOR, value % DIVISOR) of numbers that are not negative; of others it means nothing.

    Triton does not know that they are not, and its / and % would take more than all the rest of an index kernel.
    """
    if DIVISOR & (DIVISOR - 1) == 0:
        return value >> SHIFT, value & (DIVISOR - 1)
    else:
        return value // DIVISOR, value % DIVISOR


def shift(divisor: int) -> int:
    """SHIFT of `split`."""
    return max(divisor.bit_length() - 1, 0)


@triton.jit
def quarters(value, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] -> every fourth column from the first, second, third and fourth on, [ROWS, COLUMNS / 4] each.

    A thread reads four neighbours at once. What it looks up for them, it looks up one by one, and so do the threads
    beside it: as tensors of their own, the four stay where they are, and do not go through shared memory.
    """
    even, odd = tl.split(tl.reshape(value, (ROWS, COLUMNS // 4, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def looked_up(pointer, mask, other):
    """What [ROWS, n] pointers to anywhere point to. As one row of them: of several, Triton would give each lane one."""
    COUNT: tl.constexpr = pointer.shape[0] * pointer.shape[1]
    found = tl.load(tl.reshape(pointer, (COUNT,)), mask=tl.reshape(mask, (COUNT,)), other=other)
    return tl.reshape(found, pointer.shape)


@triton.jit
def joined(first, second, third, fourth, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The reverse of `quarters`."""
    both = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(both, (ROWS, COLUMNS))


def eighth(table: torch.Tensor) -> int:
    """The row stride over 8, for kernels that multiply it by 8 again, so that Triton knows rows to be aligned.

    Triton looks for multiples of 16 only; 8 elements of 2 bytes are enough for 16-byte loads. Raises ValueError where
    the stride is no multiple of 8, which the contracts of these kernels ask for.
    """
    stride = table.stride(0)
    if table.shape[0] > 1 and stride % 8:
        raise ValueError(f"row strides must be multiples of 8, not {stride}")
    return stride // 8


def tile(rows: int, width: int) -> tuple[int, int]:
    """(rows, columns) of a program over a [rows, width] table of int32: wide enough for 16-byte stores.

    Small tables are cut into small tiles, so that there are enough programs. There are few different tiles on purpose:
    each is a variant to compile, and widths vary from step to step.
    """
    columns = _columns(width)
    size = _TILE if rows * width >= 1 << 20 else _TILE // 4
    return size // columns, columns


def lookup_tile(width: int) -> tuple[int, int]:
    """As `tile`, for kernels that look up what the table's entries point to: four of them a thread of four warps.

    With more, threads wait longer than they store: 8 to 32 of them took up to 1.25 times as long on an H200.
    """
    columns = _columns(width)
    return _LOOKUPS // columns, columns


def _columns(width: int) -> int:
    return next(columns for columns in (16, 128, 512) if columns >= min(width, 512))
