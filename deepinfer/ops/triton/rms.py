"""The root mean square of rows inside Triton kernels: the order of `ops/reference/rms.py`, bit by bit.

A sum over an axis of two has one addition, so its order is settled whatever the layout: the reductions below are
chains of those.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _chain(squares, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """[ROWS, CHUNKS, 2, 2, 2]: eight squares in ascending order -> their sum in that order, [ROWS, CHUNKS]."""
    even, odd = tl.split(squares)
    e0, e2 = tl.split(even)
    e1, e3 = tl.split(odd)
    # A thread holds eight neighbouring channels, so the second half of the chain goes on in another thread. Each
    # half picks the other's by a sum with zeros, which changes no square's sum.
    half = tl.arange(0, 2)[None, None, :]
    first = ((e0 + e1) + e2) + e3
    before = tl.sum(tl.where(half == 0, first, 0.0), axis=2)
    second = (((before[:, :, None] + e0) + e1) + e2) + e3
    return tl.sum(tl.where(half == 1, second, 0.0), axis=2)


@triton.jit
def sum_of_squares(v, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """float32 [ROWS, WIDTH], zeros beyond the row's end -> [ROWS]. WIDTH = 16 * 2^LEVELS."""
    CHUNKS: tl.constexpr = WIDTH // 16
    even, odd = tl.split(tl.reshape(v * v, (ROWS, CHUNKS, 2, 2, 2, 2)))
    total = _chain(even, ROWS, CHUNKS) + _chain(odd, ROWS, CHUNKS)
    for level in tl.static_range(LEVELS):
        total = tl.sum(tl.reshape(total, (ROWS, 2, CHUNKS >> (level + 1))), axis=1)
    return tl.reshape(total, (ROWS,))


@triton.jit
def reciprocal_root(v, count, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """1 / sqrt(mean(v^2) + eps) of the `count` values of each row, [ROWS]: each operation rounded once."""
    mean = tl.div_rn(sum_of_squares(v, ROWS, WIDTH, LEVELS), tl.full((ROWS,), 0.0, tl.float32) + count)
    root = tl.sqrt_rn(mean + eps)
    return tl.div_rn(tl.full((ROWS,), 1.0, tl.float32), root)
