"""Integer arithmetic that the index kernels share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from deepinfer.ops.launch import next_power_of_2

_TILE = 4096


@triton.jit
def floor_mod(value, divisor):
    """value mod divisor (positive), never negative: Triton's % has the sign of the value."""
    rest = value % divisor
    return tl.where(rest < 0, rest + divisor, rest)


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
    """(rows, columns) of a program over a [rows, width] table of int32: powers of two, wide enough for 16-byte stores.

    Few rows are cut into short tiles, so that there are enough programs.
    """
    columns = min(max(next_power_of_2(width), 16), 1024)
    size = _TILE if rows * width >= 1 << 20 else _TILE // 4
    return max(size // columns, 1), columns
