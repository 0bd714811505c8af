"""What kernels with products share: tiles of quantised rows as operands of tl.dot (model_spec 2.3, 6.10).

A dequantised value is exact in bfloat16. The interpreter's product of bfloat16 is wrong, so it gets float32.
Tiles of kernels with several products are at least 64 wide and belong to 8 warps: smaller ones have been read wrongly
on Hopper by Triton 3.7.1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.quantize import INTERPRETED, decode_ue8m0, narrow, spread, unpack_e2m1, widen

WARPS = 8
BLOCK_M = 64


@triton.jit
def operand(x):
    """float32 that bfloat16 holds exactly, or bfloat16, as tl.dot takes it here."""
    if INTERPRETED:
        return widen(x)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def group_scales(scales, row, live, START, DEPTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The scales of BLOCK columns from START on, one a column: float32 [ROWS, BLOCK]; 0 where there are none.

    row: int64 [ROWS], the rows of `scales`; live: which of them there are.
    """
    group = START // 32 + tl.arange(0, BLOCK // 32)
    mask = live[:, None] & (group < DEPTH // 32)[None, :]
    codes = tl.load(scales + row[:, None] * (DEPTH // 32) + group[None, :], mask=mask, other=0)
    return spread(decode_ue8m0(codes), ROWS, BLOCK, 32)


@triton.jit
def fp4_tile(values, scales, row, live, START, DEPTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Columns from START on of e2m1 rows (two a byte, as uint8) with a scale per 32 columns: [ROWS, BLOCK]."""
    column = START // 2 + tl.arange(0, BLOCK // 2)
    mask = live[:, None] & (column < DEPTH // 2)[None, :]
    codes = tl.load(values + row[:, None] * (DEPTH // 2) + column[None, :], mask=mask, other=0)
    return operand(unpack_e2m1(codes, ROWS, BLOCK) * group_scales(scales, row, live, START, DEPTH, ROWS, BLOCK))


@triton.jit
def bf16_tile(values, row, live, START, DEPTH: tl.constexpr, BLOCK: tl.constexpr):
    """Columns from START on of bfloat16 rows: [ROWS, BLOCK]."""
    column = START + tl.arange(0, BLOCK)
    mask = live[:, None] & (column < DEPTH)[None, :]
    return operand(tl.load(values + row[:, None] * DEPTH + column[None, :], mask=mask, other=0.0))


@triton.jit
def rounded_like(out, sums):
    """Sums in the type that `out` points to."""
    if out.dtype.element_ty == tl.float32:
        return sums
    else:
        return narrow(sums)
