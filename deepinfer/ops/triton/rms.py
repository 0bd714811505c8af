"""The root mean square of rows inside Triton kernels: the order of `ops/reference/rms.py`, bit by bit.

A sum over an axis of two has one addition, so its order is settled whatever the layout: the reductions below are
chains of those.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.quantize import reciprocal


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
def chunk_sums(v, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """float32 [ROWS, WIDTH] -> sums of the squares of 16 channels each, [ROWS, WIDTH / 16]."""
    CHUNKS: tl.constexpr = WIDTH // 16
    even, odd = tl.split(tl.reshape(v * v, (ROWS, CHUNKS, 2, 2, 2, 2)))
    return _chain(even, ROWS, CHUNKS) + _chain(odd, ROWS, CHUNKS)


@triton.jit
def add_behind(sums, more, ROWS: tl.constexpr, CHUNKS: tl.constexpr, MORE: tl.constexpr):
    """The first halving of [sums, more, zeros], twice CHUNKS wide: [ROWS, CHUNKS]. MORE: chunks of `more`."""
    if MORE == CHUNKS:
        return sums + more
    else:
        first = tl.arange(0, CHUNKS // MORE)[None, :, None] == 0
        padded = tl.where(first, more[:, None, :], 0.0)
        return sums + tl.reshape(padded, (ROWS, CHUNKS))


@triton.jit
def halved(total, ROWS: tl.constexpr, CHUNKS: tl.constexpr, LEVELS: tl.constexpr):
    """[ROWS, CHUNKS] -> [ROWS], pairs added from the widest distance down to 1. CHUNKS = 2^LEVELS."""
    for level in tl.static_range(LEVELS):
        total = tl.sum(tl.reshape(total, (ROWS, 2, CHUNKS >> (level + 1))), axis=1)
    return tl.reshape(total, (ROWS,))


@triton.jit
def sum_of_squares(v, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """float32 [ROWS, WIDTH], zeros beyond the row's end -> [ROWS]. WIDTH = 16 * 2^LEVELS."""
    return halved(chunk_sums(v, ROWS, WIDTH), ROWS, WIDTH // 16, LEVELS)


@triton.jit
def reciprocal_root(total, eps, COUNT: tl.constexpr):
    """1 / sqrt(total / COUNT + eps): each operation rounded once."""
    if COUNT & (COUNT - 1) == 0:
        mean = total * (1.0 / COUNT)
    else:
        mean = tl.div_rn(total, tl.full(total.shape, COUNT, tl.float32))
    return reciprocal(tl.sqrt_rn(mean + eps))
