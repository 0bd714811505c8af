"""First half of `hyper_step`: the trunk after a sub-layer, its mix, and parts of sums over columns (model_spec 3.2).

Whatever the batch, a row's sums are made of blocks of 32 columns of all four streams, and the blocks are added in an
order that the width alone settles: those of a part one after the other, then the 16 parts by halving (`add_parts`).
A block's squares are added two by two (`_sum_of_columns`).
A product has the outputs as its rows: 32 are too few for Hopper's own instruction (64), so that tiles of all sizes
are multiplied by the same one, in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.hyper_streams import into_stream, load_streams, mixing, posted
from deepinfer.ops.triton.quantize import INTERPRETED, rounded, widen

PARTS = tl.constexpr(16)
BLOCK = tl.constexpr(32)
"""Columns of a block."""
LINE = tl.constexpr(32)
"""Numbers a row and block: 8 products (pre, post), the sum of squares of R', 7 zeros, 16 products (comb)."""
SQUARES = tl.constexpr(8)
"""Where in a line the sum of squares is."""


@triton.jit
def output_of(line):
    """The output of fn (or of base) that a place of the line belongs to; places 8 to 15 have none."""
    return tl.where(line < 8, line, line - 8)


@triton.jit
def _upper(x):
    """float32 whose lower half does not count -> the upper half as bfloat16. A cast would take eight times as long.

    Not pure for the compiler, which would else compute what it is made of anew for every layout that wants it.
    """
    if INTERPRETED:
        return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=False, pack=2
        )


@triton.jit
def _without_lower(x):
    """float32 with its lower half cut off: at most eight significant bits are left."""
    return (x.to(tl.int32, bitcast=True) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def _joined(x0, x1, x2, x3, ROWS: tl.constexpr):
    """Four streams' [ROWS, BLOCK] -> [ROWS, 4 BLOCK], the streams of a column beside each other; moves nothing."""
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (ROWS, 4 * BLOCK))


@triton.jit
def _product(weights, value, ROWS: tl.constexpr):
    """weights value^T in float32, [LINE, ROWS]: weights float32, value bfloat16, both [..., 4 BLOCK].

    A float32 number is the sum of three of bfloat16, whose products are exact; tensor cores add them up in float32.
    """
    if INTERPRETED:
        return tl.dot(weights, tl.trans(widen(value)), input_precision="ieee")
    else:
        high = _without_lower(weights)
        rest = weights - high
        middle = _without_lower(rest)
        first, second, third = _upper(high), _upper(middle), _upper(rest - middle)
        value = tl.trans(value)
        low = tl.dot(third, value)
        middle = tl.dot(second, value)
        high = tl.dot(first, value)
        # Three sums, of which none waits for another: of `+` the compiler would make a single one.
        one = tl.full([LINE, ROWS], 1.0, tl.float32)
        return tl.fma(tl.fma(low, one, middle), one, high)


@triton.jit
def _sum_of_columns(value, ROWS: tl.constexpr):
    """[ROWS, BLOCK] -> [ROWS], neighbours first: the five axes' sums are of two numbers each, so of one addition. A sum
    of all columns at once would be in an order that a thread's number of columns decides, and the tile decides that.
    """
    value = tl.reshape(value, (ROWS, 2, 2, 2, 2, 2))
    value = tl.sum(tl.sum(tl.sum(value, axis=5), axis=4), axis=3)
    return tl.sum(tl.sum(value, axis=2), axis=1)


@triton.jit
def _block(
    trunk, given, place, fn, into, shares, trunk_out, mask, wanted,
    D: tl.constexpr, POST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One block of columns: (h as float32, products [LINE, ROWS], squares of R' [ROWS]); R' is stored.

    fn: pointers to the weights of the first stream, [LINE, BLOCK]; place: [ROWS, BLOCK], of its columns in the trunk.
    """
    # All is asked for before any of it is used: a few rows take as long as what they wait for.
    v0, v1, v2, v3 = load_streams(trunk + place, D, mask)
    w0 = tl.load(fn, mask=wanted, other=0.0)
    w1 = tl.load(fn + D, mask=wanted, other=0.0)
    w2 = tl.load(fn + 2 * D, mask=wanted, other=0.0)
    w3 = tl.load(fn + 3 * D, mask=wanted, other=0.0)
    if POST:
        r0, r1, r2, r3 = v0, v1, v2, v3
        v0 = posted(given, r0, r1, r2, r3, into[0])
        v1 = posted(given, r0, r1, r2, r3, into[1])
        v2 = posted(given, r0, r1, r2, r3, into[2])
        v3 = posted(given, r0, r1, r2, r3, into[3])
        tl.store(trunk_out + place, _upper(v0), mask=mask)
        tl.store(trunk_out + place + D, _upper(v1), mask=mask)
        tl.store(trunk_out + place + 2 * D, _upper(v2), mask=mask)
        tl.store(trunk_out + place + 3 * D, _upper(v3), mask=mask)
    h = rounded(((shares[0] * v0 + shares[1] * v1) + shares[2] * v2) + shares[3] * v3)
    squares = ((v0 * v0 + v1 * v1) + v2 * v2) + v3 * v3
    found = _product(_joined(w0, w1, w2, w3, LINE), _upper(_joined(v0, v1, v2, v3, ROWS)), ROWS)
    return h, found, _sum_of_columns(squares, ROWS)


@triton.jit(do_not_specialize=["rows"])
def spread(
    trunk, x, post, comb, pre, fn, trunk_out, mixed, products, squares, rows,
    D: tl.constexpr, POST: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """R' and h of ROWS rows and BLOCKS blocks, and their sums.

    products: float32 [rows, parts of the grid, LINE]. squares: float32 [rows, parts of the grid], of h.
    """
    await_inputs()
    some = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = some < rows
    row, own = some[:, None], known[:, None]
    part = tl.program_id(1)
    line = tl.arange(0, LINE)[:, None]
    weights = fn + output_of(line) * (4 * D)
    shares = mixing(pre, some, known)
    into = shares
    if POST:
        into = (
            into_stream(post, comb, some, known, 0),
            into_stream(post, comb, some, known, 1),
            into_stream(post, comb, some, known, 2),
            into_stream(post, comb, some, known, 3),
        )
    total = tl.zeros([LINE, ROWS], tl.float32)
    trunk_squares = tl.zeros([ROWS], tl.float32)
    mix_squares = tl.zeros([ROWS], tl.float32)
    for block in range(BLOCKS):
        column = (part * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)[None, :]
        mask = own & (column < D)
        wanted = ((line < 8) | (line >= 16)) & (column < D)
        given = shares[0]
        if POST:
            given = widen(tl.load(x + row * D + column, mask=mask, other=0.0))
        h, found, of_trunk = _block(
            trunk, given, row * (4 * D) + column, weights + column, into, shares, trunk_out, mask, wanted,
            D, POST, ROWS,
        )  # fmt: skip
        tl.store(mixed + row * D + column, _upper(h), mask=mask)
        total += found
        trunk_squares += of_trunk
        mix_squares += _sum_of_columns(h * h, ROWS)
    place = some * tl.num_programs(1) + part
    tl.store(products + place[None, :] * LINE + line, total, mask=known[None, :] & (line != SQUARES))
    tl.store(products + place * LINE + SQUARES, trunk_squares, mask=known)
    tl.store(squares + place, mix_squares, mask=known)


@triton.jit
def add_parts(sums, STEP: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """Sums of all blocks: pointers [PARTS, WIDTH] to the first ones of every part, BLOCKS of each, STEP apart ->
    [WIDTH]. A sum over an axis of two has one addition, so the order is settled whatever the layout.
    """
    total = tl.load(sums)
    for block in tl.static_range(1, BLOCKS):
        total += tl.load(sums + block * STEP)
    for level in tl.static_range(4):
        total = tl.sum(tl.reshape(total, (2, PARTS >> (level + 1), WIDTH)), axis=0)
    return tl.reshape(total, (WIDTH,))
