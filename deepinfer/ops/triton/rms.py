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
    """[ROWS, CHUNKS, 2, 2, 2]: eight squares in ascending order -> [ROWS, CHUNKS, 2]: (any, their sum).

    A thread holds eight neighbouring channels, so the second half of the chain goes on in another thread.
    """
    even, odd = tl.split(squares)
    e0, e2 = tl.split(even)
    e1, e3 = tl.split(odd)
    half = tl.arange(0, 2)[None, None, :]
    first = ((e0 + e1) + e2) + e3
    before = tl.sum(tl.where(half == 0, first, 0.0), axis=2)
    return (((before[:, :, None] + e0) + e1) + e2) + e3


@triton.jit
def _second(pairs, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """[ROWS, WIDTH, 2] -> the second of each pair, [ROWS, WIDTH]: a sum with a zero, which changes no square's sum."""
    half = tl.arange(0, 2)[None, None, :]
    return tl.sum(tl.where(half == 1, pairs, 0.0), axis=2)


@triton.jit
def chunk_sums(v, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """float32 [ROWS, WIDTH] -> [ROWS, WIDTH / 16, 2]: (any, the sum of the squares of 16 channels)."""
    CHUNKS: tl.constexpr = WIDTH // 16
    even, odd = tl.split(tl.reshape(v * v, (ROWS, CHUNKS, 2, 2, 2, 2)))
    return _chain(even, ROWS, CHUNKS) + _chain(odd, ROWS, CHUNKS)


@triton.jit
def add_behind(sums, more, ROWS: tl.constexpr, CHUNKS: tl.constexpr, MORE: tl.constexpr):
    """The first halving of [sums, more, zeros], twice CHUNKS wide: [ROWS, CHUNKS, 2]. MORE: chunks of `more`."""
    if MORE == CHUNKS:
        return sums + more
    else:
        first = tl.arange(0, CHUNKS // MORE)[None, :, None, None] == 0
        padded = tl.where(first, more[:, None, :, :], 0.0)
        return sums + tl.reshape(padded, (ROWS, CHUNKS, 2))


@triton.jit
def _halved(total, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """[ROWS, WIDTH] -> [ROWS, WIDTH / 2^LEVELS]: halves added, one time after the other."""
    for level in tl.static_range(LEVELS):
        total = tl.sum(tl.reshape(total, (ROWS, 2, WIDTH >> (level + 1))), axis=1)
    return total


@triton.jit
def _quartered(total, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """[ROWS, WIDTH] -> [ROWS, WIDTH / 4], as two halvings: one exchange between warps where each has a quarter."""
    total = tl.permute(tl.reshape(total, (ROWS, 2, 2, WIDTH // 4)), (0, 3, 2, 1))
    a, b = tl.split(total)
    a, b = tl.split(a + b)
    return a + b


@triton.jit
def row_sums(sums, ROWS: tl.constexpr, CHUNKS: tl.constexpr, LEVELS: tl.constexpr, WARPS: tl.constexpr):
    """[ROWS, CHUNKS, 2] as of `chunk_sums` -> [ROWS], pairs added from the widest distance down to 1.

    CHUNKS = 2^LEVELS. WARPS: of the program; the halvings between four are one exchange.
    """
    total = tl.reshape(sums, (ROWS, 2 * CHUNKS))
    if ROWS == 1 and WARPS == 4 and LEVELS >= 6:
        # A warp's lanes hold 16 chunks side by side: the halvings of wider distances are within threads.
        total = _quartered(_halved(total, ROWS, 2 * CHUNKS, LEVELS - 6), ROWS, 128)
        total = _halved(total, ROWS, 32, 4)
    else:
        total = _halved(total, ROWS, 2 * CHUNKS, LEVELS)
    return tl.reshape(_second(tl.reshape(total, (ROWS, 1, 2)), ROWS, 1), (ROWS,))


@triton.jit
def sum_of_squares(v, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """float32 [ROWS, WIDTH], zeros beyond the row's end -> [ROWS]. WIDTH = 16 * 2^LEVELS."""
    CHUNKS: tl.constexpr = WIDTH // 16
    even, odd = tl.split(tl.reshape(v * v, (ROWS, CHUNKS, 2, 2, 2, 2)))
    first = _second(_chain(even, ROWS, CHUNKS), ROWS, CHUNKS)
    sums = first + _second(_chain(odd, ROWS, CHUNKS), ROWS, CHUNKS)
    return tl.reshape(_halved(sums, ROWS, CHUNKS, LEVELS), (ROWS,))


@triton.jit
def reciprocal_root(total, eps, COUNT: tl.constexpr):
    """1 / sqrt(total / COUNT + eps): each operation rounded once."""
    if COUNT & (COUNT - 1) == 0:
        mean = total * (1.0 / COUNT)
    else:
        mean = tl.div_rn(total, tl.full(total.shape, COUNT, tl.float32))
    return reciprocal(tl.sqrt_rn(mean + eps))
