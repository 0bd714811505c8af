"""Rotary embedding of heads in Triton (model_spec 3.0, 3.3), and what kernels share that rotate a row's last columns
or take its Hadamard transform (kernel_spec A.13 steps 3, 4).
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.quantize import fused_multiply_add, narrow, quantize, rounded, widen
from deepinfer.ops.triton.rows import tile

_ROTATED = 64
_ROWS, _WARPS = 64, 4


@triton.jit
def rotate_neighbours(
    w, cos_row, sin_row, turned, CONJUGATE: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, ROUND: tl.constexpr = True,
):  # fmt: skip
    """Rotate pairs (2j, 2j + 1) of the columns from OFFSET on.

    w: float32 [ROWS, WIDTH]. cos_row, sin_row: pointers to each row's table, [ROWS, 1].
    turned: which rows are rotated, [ROWS, 1]. ROUND: what is rotated is rounded to bfloat16.
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
    if ROUND:
        first, second = rounded(first), rounded(second)
    a = tl.where(mask, first, a)
    b = tl.where(mask, second, b)
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


@triton.jit
def _tables(positions, table, table_rows, stride, first, rows, HEADS, ROWS: tl.constexpr):
    """Of ROWS heads from `first` on, [ROWS, 1]: the pointers to their positions' cosines, and which have any."""
    row = first + tl.arange(0, ROWS)
    position = tl.load(positions + row // HEADS, mask=row < rows, other=-1).to(tl.int64)[:, None]
    return table + position * stride, (position >= 0) & (position < table_rows)


@triton.jit(do_not_specialize=["rows", "table_rows"])
def _rotate(
    x, positions, table, out, rows, heads, kept, table_rows, x_n, x_h, out_n, out_h, stride,
    INVERSE: tl.constexpr, COPY: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)[:, None]
    live = row < rows
    token, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    source, target = x + token * x_n + head * x_h, out + token * out_n + head * out_h
    column = tl.arange(0, WIDTH)[None, :]
    cos_row, turned = _tables(positions, table, table_rows, stride, first, rows, heads, ROWS)
    w = widen(tl.load(source + kept + column, mask=live, other=0.0))
    w = rotate_neighbours(w, cos_row, cos_row + WIDTH // 2, turned, INVERSE, 0, ROWS, WIDTH)
    tl.store(target + kept + column, narrow(w), mask=live)
    if COPY:
        for begin in range(0, kept, WIDTH):
            mask = live & (begin + column < kept)
            tl.store(target + begin + column, tl.load(source + begin + column, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["rows", "table_rows"])
def _rotate_quantize(
    o, positions, table, values, scales, rows, heads, table_rows, stride,
    OFFSET: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    live = row < rows
    column = tl.arange(0, WIDTH)[None, :]
    cos_row, turned = _tables(positions, table, table_rows, stride, first, rows, heads, ROWS)
    w = tl.load(o + row * WIDTH + column, mask=live, other=0.0)
    sin_row = cos_row + (WIDTH - OFFSET) // 2
    w = rotate_neighbours(w, cos_row, sin_row, turned, True, OFFSET, ROWS, WIDTH, ROUND=False)
    codes, stored, _ = quantize(w, "e4m3", 32, True, "ue8m0", ROWS, WIDTH)
    tl.store(values + row * WIDTH + column, codes, mask=live)
    tl.store(scales + row * (WIDTH // 32) + tl.arange(0, WIDTH // 32)[None, :], stored, mask=live)


@functools.cache
def rotate(inverse: bool) -> Kernel:
    """out = x with the last 64 columns of every head rotated by its row's position, or back; out may be x."""

    def run(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, out: torch.Tensor) -> None:
        n, heads, width = x.shape
        # In place there is nothing to copy, which is seven eighths of a query.
        copy = width > _ROTATED and out.data_ptr() != x.data_ptr()
        launch(
            _rotate, (cdiv(n * heads, _ROWS),), x, positions, cos_sin, out,
            n * heads, heads, width - _ROTATED, cos_sin.shape[0],
            x.stride(0), x.stride(1), out.stride(0), out.stride(1), cos_sin.stride(0),
            INVERSE=inverse, COPY=copy, ROWS=_ROWS, WIDTH=_ROTATED, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run


@functools.cache
def rotate_heads_quantize() -> Kernel:
    """values, scales = Q8 of o with the last 64 columns of every head rotated back, all in float32."""

    def run(
        o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        n, heads, width = o.shape
        each, _, warps = tile(width)
        launch(
            _rotate_quantize, (cdiv(n * heads, each),), o, positions, cos_sin, values.view(torch.uint8), scales,
            n * heads, heads, cos_sin.shape[0], cos_sin.stride(0),
            OFFSET=width - _ROTATED, ROWS=each, WIDTH=width, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip

    return run
