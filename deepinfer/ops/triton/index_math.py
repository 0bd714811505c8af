"""Integer arithmetic that the index kernels share."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.launch import next_power_of_2

_TILE = 4096


@triton.jit
def floor_mod(value, divisor):
    """value mod divisor (positive), never negative: Triton's % has the sign of the value."""
    rest = value % divisor
    return tl.where(rest < 0, rest + divisor, rest)


def tile(rows: int, width: int) -> tuple[int, int]:
    """(rows, columns) of a program over a [rows, width] table of int32: powers of two, wide enough for 16-byte stores.

    Few rows are cut into short tiles, so that there are enough programs.
    """
    columns = min(max(next_power_of_2(width), 16), 1024)
    size = _TILE if rows * width >= 1 << 20 else _TILE // 4
    return max(size // columns, 1), columns
