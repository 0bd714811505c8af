"""Codes of quantised weights, decoded in registers from which Hopper's tensor cores take an operand (model_spec 2.3).

A thread reads four neighbouring codes of a row at once, 16 bits of e2m1 or 32 of e4m3. In the order of wgmma's operand
those are no neighbours, so within each 16 columns the tile's are in another order than the weight's: `column_at` says
which, and rows that it is multiplied by are laid out in that order too. wgmma sums 16 products at a time, and which of
the 16 columns is where makes no difference to the bits of their sum.

Values times scales are exact in bfloat16. Triton's interpreter has no PTX, and multiplies bfloat16 wrongly: there the
same values are computed as float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.quantize import INTERPRETED, decode_e2m1, decode_e4m3, decode_ue8m0, spread

_FOUR_E2M1 = tl.constexpr("""{
.reg .b32 w, a, b, t;
mul.lo.u32 w, $4, 0x100001;
shr.u32 a, w, 6;
and.b32 a, a, 0x01C001C0;
lop3.b32 a, w, 0x80008000, a, 0xEA;
shl.b32 b, w, 8;
shl.b32 t, w, 2;
and.b32 t, t, 0x01C001C0;
lop3.b32 b, b, 0x80008000, t, 0xEA;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
}""")
"""Four codes in the lower 16 bits -> those of columns 3, 2, 1, 0 as bfloat16 times 2^-126: the two bits of a code's
exponent are the lowest of bfloat16's, so that 0.5 is a subnormal number as it is in e2m1. The product puts columns 3
and 1 into the lower half and 2 and 0 into the upper one, in a unit that has less to do than that of shifts."""

_FOUR_E4M3 = tl.constexpr("""{
.reg .b16 p, q, f0, f1, f2, f3;
.reg .b32 lo, hi;
.reg .f32 v0, v1, v2, v3;
mov.b32 {p, q}, $4;
cvt.rn.f16x2.e4m3x2 lo, p;
cvt.rn.f16x2.e4m3x2 hi, q;
mov.b32 {f0, f1}, lo;
mov.b32 {f2, f3}, hi;
cvt.f32.f16 v0, f0;
cvt.f32.f16 v1, f1;
cvt.f32.f16 v2, f2;
cvt.f32.f16 v3, f3;
cvt.rn.bf16x2.f32 lo, v1, v0;
cvt.rn.bf16x2.f32 hi, v3, v2;
mov.b32 {$0, $1}, lo;
mov.b32 {$2, $3}, hi;
}""")
"""Four bytes -> columns 0, 1, 2, 3 as bfloat16. Every cast is exact, and NaN stays NaN."""

_FOUR_SCALES = tl.constexpr("""{
.reg .b32 t;
prmt.b32 t, $2, 0, 0x4140;
mul.lo.u32 $0, t, 0x80;
prmt.b32 t, $2, 0, 0x4342;
mul.lo.u32 $1, t, 0x80;
}""")
"""Four bytes -> powers of two as bfloat16: a byte is the exponent."""


@triton.jit
def column_at(place, FP4: tl.constexpr):
    """Which column of the weight is at a place of a tile that `dequantised` makes."""
    half = (place & 15) >> 3
    within = 3 - 2 * half - (place & 1) if FP4 else 2 * half + (place & 1)
    return (place & -16) + 4 * ((place & 7) >> 1) + within


@triton.jit
def _in_order(a, b, c, d, M: tl.constexpr, K: tl.constexpr):
    """Within each 16 places (a, b) of each four columns, then (c, d) of each: [M, K / 4] each -> [M, K]."""
    first = tl.reshape(tl.join(a, b), (M, K // 16, 4, 2))
    second = tl.reshape(tl.join(c, d), (M, K // 16, 4, 2))
    both = tl.permute(tl.join(first, second), (0, 1, 4, 2, 3))
    return tl.reshape(both, (M, K))


@triton.jit
def dequantised(codes, scales, FP4: tl.constexpr, M: tl.constexpr, K: tl.constexpr):
    """codes int16 of four e2m1 or int32 of four e4m3 [M, K / 4], scales uint8 [M, K / 32] -> [M, K] for tl.dot."""
    if INTERPRETED:
        return _interpreted(codes.to(tl.int32), FP4, M, K) * spread(decode_ue8m0(scales), M, K, 32)
    else:
        four: tl.constexpr = (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16)
        if FP4:
            wide = codes.to(tl.uint16, bitcast=True).to(tl.uint32)
            a, b, c, d = tl.inline_asm_elementwise(
                _FOUR_E2M1, "=h,=h,=h,=h,r", [wide], dtype=four, is_pure=True, pack=1
            )  # fmt: skip
        else:
            a, b, c, d = tl.inline_asm_elementwise(
                _FOUR_E4M3, "=h,=h,=h,=h,r", [codes], dtype=four, is_pure=True, pack=1
            )  # fmt: skip
        tile = tl.reshape(_in_order(a, b, c, d, M, K), (M, K // 32, 32))
        scale = tl.inline_asm_elementwise(_FOUR_SCALES, "=r,=r,r", [scales], dtype=tl.bfloat16, is_pure=True, pack=4)
        if FP4:
            tile = tile * tl.full(tile.shape, 2.0**126, tl.bfloat16)
        return tl.reshape(tile * scale[:, :, None], (M, K))


@triton.jit
def _interpreted(codes, FP4: tl.constexpr, M: tl.constexpr, K: tl.constexpr):
    """The codes' values in the order of the tile, float32 [M, K]."""
    if FP4:
        return _in_order(
            decode_e2m1((codes >> 12) & 15), decode_e2m1((codes >> 8) & 15),
            decode_e2m1((codes >> 4) & 15), decode_e2m1(codes & 15), M, K,
        )  # fmt: skip
    else:
        return _in_order(
            decode_e4m3(codes & 255), decode_e4m3((codes >> 8) & 255),
            decode_e4m3((codes >> 16) & 255), decode_e4m3((codes >> 24) & 255), M, K,
        )  # fmt: skip
