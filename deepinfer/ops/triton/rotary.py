"""Rotation of a row's last columns and the Hadamard transform, inside Triton kernels (kernel_spec A.13 steps 3, 4)."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.quantize import fused_multiply_add, rounded


@triton.jit
def rotate_neighbours(
    w, cos_row, sin_row, turned, CONJUGATE: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Rotate pairs (2j, 2j + 1) of the columns from OFFSET on.

    w: float32 [ROWS, WIDTH] of bfloat16 values. cos_row, sin_row: pointers to each row's table, [ROWS, 1].
    turned: which rows are rotated, [ROWS, 1].
    """
    a, b = tl.split(tl.reshape(w, (ROWS, WIDTH // 2, 2)))
    pair = tl.arange(0, WIDTH // 2)[None, :] - OFFSET // 2
    mask = turned & (pair >= 0)
    c = tl.load(cos_row + pair, mask=mask, other=1.0)
    s = tl.load(sin_row + pair, mask=mask, other=0.0)
    if CONJUGATE:
        s = s * -1.0
    first = fused_multiply_add(a, c, b * (s * -1.0))
    second = fused_multiply_add(a, s, b * c)
    a = tl.where(mask, rounded(first), a)
    b = tl.where(mask, rounded(second), b)
    return tl.reshape(tl.join(a, b), (ROWS, WIDTH))


@triton.jit
def neox_partner(OFFSET: tl.constexpr, WIDTH: tl.constexpr):
    """For pairs (j, j + pairs) of the columns from OFFSET on: each column's partner; of the others, itself."""
    PAIRS: tl.constexpr = (WIDTH - OFFSET) // 2
    column = tl.arange(0, WIDTH)[None, :]
    other = tl.where(column < OFFSET + PAIRS, column + PAIRS, column - PAIRS)
    return tl.where(column < OFFSET, column, other)


@triton.jit
def rotate_halves(
    w, partner, cos_row, sin_row, turned, CONJUGATE: tl.constexpr, OFFSET: tl.constexpr, WIDTH: tl.constexpr
):
    """Rotate pairs (j, j + pairs) of the columns from OFFSET on.

    As `rotate_neighbours`; partner: of each column, the other value of its pair.
    """
    PAIRS: tl.constexpr = (WIDTH - OFFSET) // 2
    column = tl.arange(0, WIDTH)[None, :]
    first = column < OFFSET + PAIRS
    pair = tl.where(first, column - OFFSET, column - OFFSET - PAIRS)
    mask = turned & (column >= OFFSET)
    c = tl.load(cos_row + pair, mask=mask, other=1.0)
    s = tl.load(sin_row + pair, mask=mask, other=0.0)
    if CONJUGATE:
        s = s * -1.0
    a, b = tl.where(first, w, partner), tl.where(first, partner, w)
    value = fused_multiply_add(a, tl.where(first, c, s), b * tl.where(first, s * -1.0, c))
    return tl.where(mask, rounded(value), w)


@triton.jit
def hadamard(v, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """The Walsh-Hadamard transform in natural order of float32 [ROWS, WIDTH], WIDTH = 2^LEVELS."""
    second = tl.arange(0, 2)[None, None, :, None] == 1
    for level in tl.static_range(LEVELS):
        pairs = tl.reshape(v, (ROWS, WIDTH >> (level + 1), 2, 1 << level))
        # A sum over an axis of two is one addition: u + v, and u + (-v).
        total = tl.sum(pairs, axis=2)[:, :, None, :]
        less = tl.sum(tl.where(second, pairs * -1.0, pairs), axis=2)[:, :, None, :]
        v = tl.reshape(tl.where(second, less, total), (ROWS, WIDTH))
    return v
