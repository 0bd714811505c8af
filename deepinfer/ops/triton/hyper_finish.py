"""Second half of `hyper_step`: what goes on to the next sub-layer, and the norm of the mix with Q8 (model_spec 3.2)."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.hyper_spread import LINE, PARTS, SQUARES, add_parts, output_of
from deepinfer.ops.triton.quantize import INTERPRETED, narrow, quantize, reciprocal, rounded, widen


@triton.jit
def _root(total, eps, COUNT: tl.constexpr):
    return reciprocal(tl.sqrt_rn(total * (1.0 / COUNT) + eps))


@triton.jit
def _near_reciprocal(x):
    """1 / x of float32 to a unit in the last place: half of the time of `reciprocal`, where one waits for the next."""
    if INTERPRETED:
        return reciprocal(x)
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _sigmoid(z):
    return reciprocal(1.0 + tl.exp(-z))


@triton.jit
def _row_sums(c):
    return tl.sum(tl.sum(c, axis=3, keep_dims=True), axis=2, keep_dims=True)


@triton.jit
def _column_sums(c):
    return tl.sum(tl.sum(c, axis=1, keep_dims=True), axis=0, keep_dims=True)


@triton.jit
def _sinkhorn(c, hc_eps, ITERATIONS: tl.constexpr):
    """A 4x4 matrix as [2, 2, 2, 2]: softmax of its rows, then columns and rows brought to the sum 1 by turns, columns
    last. One number a thread of a warp, so that a sum is two exchanges between threads and a turn has no memory in it.
    """
    c = tl.exp(c - tl.max(tl.max(c, axis=3, keep_dims=True), axis=2, keep_dims=True))
    c = c * _near_reciprocal(_row_sums(c)) + hc_eps
    c = c * _near_reciprocal(_column_sums(c) + hc_eps)
    for _ in range(ITERATIONS - 1):
        c = c * _near_reciprocal(_row_sums(c) + hc_eps)
        c = c * _near_reciprocal(_column_sums(c) + hc_eps)
    return c


@triton.jit
def _coefficients(
    products, base, scale, pre, post, comb, row, eps, hc_eps,
    D: tl.constexpr, BLOCKS: tl.constexpr, ITERATIONS: tl.constexpr,
):  # fmt: skip
    """What a row gives the next sub-layer."""
    line = tl.arange(0, LINE)
    has_output = (line < 8) | (line >= 16)
    weight = tl.load(scale + tl.where(line < 4, 0, tl.where(line < 8, 1, 2)))
    bias = tl.load(base + output_of(line), mask=has_output, other=0.0)
    part = tl.arange(0, PARTS)[:, None]
    first = products + row * (PARTS * BLOCKS * LINE) + part * (BLOCKS * LINE) + line[None, :]
    u = add_parts(first, LINE, BLOCKS, LINE)
    squares = tl.sum(tl.where(line == SQUARES, u, 0.0), axis=0, keep_dims=True)
    z = u * _root(squares, eps, 4 * D) * weight + bias
    gate = _sigmoid(z)
    tl.store(pre + row * 4 + line, gate + hc_eps, mask=line < 4)
    tl.store(post + row * 4 + line - 4, 2.0 * gate, mask=(line >= 4) & (line < 8))
    # The line's second half: a sum with zeros, which changes nothing.
    half = tl.arange(0, 2)[:, None]
    c = tl.sum(tl.where(half == 1, tl.reshape(z, (2, 16)), 0.0), axis=0)
    c = tl.reshape(_sinkhorn(tl.reshape(c, (2, 2, 2, 2)), hc_eps, ITERATIONS), (16,))
    tl.store(comb + row * 16 + tl.arange(0, 16), c)


@triton.jit
def _norm_tile(
    squares, norm, y, values, scales, row, start, eps,
    D: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """h, which y holds, normed and cast: COLUMNS columns of a row from `start` on."""
    column = start + tl.arange(0, COLUMNS)[None, :]
    mask = column < D
    h = widen(tl.load(y + row * D + column, mask=mask, other=0.0))
    weight = widen(tl.load(norm + column, mask=mask, other=0.0))
    first = squares + row * (PARTS * BLOCKS) + tl.arange(0, PARTS)[:, None] * BLOCKS
    root = _root(add_parts(first, 1, BLOCKS, 1), eps, D)[:, None]
    value = rounded(h * root * weight)
    tl.store(y + row * D + column, narrow(value), mask=mask)
    codes, steps, _ = quantize(value, "e4m3", 32, True, "ue8m0", 1, COLUMNS)
    tl.store(values + row * D + column, codes, mask=mask)
    group = start // 32 + tl.arange(0, COLUMNS // 32)[None, :]
    tl.store(scales + row * (D // 32) + group, steps, mask=group < D // 32)


@triton.jit(do_not_specialize=["rows", "eps", "hc_eps"])
def finish(
    products, squares, base, scale, norm, y, values, scales, pre, post, comb, rows, eps, hc_eps,
    D: tl.constexpr, BLOCKS: tl.constexpr, ITERATIONS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program for the coefficients of every row first, as they take longest, and then one for every tile of a norm.

    BLOCKS: sums that `spread` has left of every part.
    """
    await_inputs()
    TILES: tl.constexpr = (D + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    if program < rows:
        row = program.to(tl.int64)
        _coefficients(products, base, scale, pre, post, comb, row, eps, hc_eps, D, BLOCKS, ITERATIONS)
    else:
        tile = program - rows
        row = (tile // TILES).to(tl.int64)
        _norm_tile(squares, norm, y, values, scales, row, tile % TILES * COLUMNS, eps, D, BLOCKS, COLUMNS)
