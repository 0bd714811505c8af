"""Index queries in Triton: half of every head rotated, all of it cast to e2m1 (a configuration of kernel_spec A.13).

Of all that a forward runs beside its products, this is the most arithmetic for a byte. It is done with two bfloat16 in
a register: what a pair of e2m1 takes then are 13 instructions, one by one 24.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.quantize import (
    INTERPRETED,
    encode_e2m1,
    fused_multiply_add,
    group_scale,
    narrow,
    spread,
)

_SIGNS_OFF = tl.constexpr(0x7FFF7FFF)
_HIGH = tl.constexpr(-0x10000)


@triton.jit
def _low(pair):
    """The lower of two bfloat16, as float32."""
    return (pair << 16).to(tl.float32, bitcast=True)


@triton.jit
def _high(pair):
    return (pair & _HIGH).to(tl.float32, bitcast=True)


@triton.jit
def _pair(low, high):
    """Two float32 -> the nearest bfloat16 of both in an int32."""
    if INTERPRETED:
        first = narrow(low).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return first | (narrow(high).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    else:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def _number(bits):
    return tl.where(bits > 0x7F80, 0, bits)


@triton.jit
def _larger(first, second):
    """Of two pairs without signs, the larger ones; a NaN is less than any number."""
    if INTERPRETED:
        low = tl.maximum(_number(first & 0xFFFF), _number(second & 0xFFFF))
        return low | (tl.maximum(_number(first >> 16), _number(second >> 16)) << 16)
    else:
        return tl.inline_asm_elementwise(
            "max.bf16x2 $0, $1, $2;", "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def _twice(multiplier):
    """A power of two in float32 as `_codes` takes it: as a pair of bfloat16."""
    if INTERPRETED:
        return multiplier
    else:
        bits = multiplier.to(tl.int32, bitcast=True)
        return bits | (bits >> 16)


@triton.jit
def _codes(pair, multiplier):
    """A pair times its group's multiplier -> its e2m1 codes in the lowest byte, as `encode_e2m1`; the rest is junk."""
    if INTERPRETED:
        return encode_e2m1(_low(pair) * multiplier) | (encode_e2m1(_high(pair) * multiplier) << 4)
    else:
        # As quantize._e2m1_on_top: next to 2^6 times the value's power of two, a bfloat16 has one bit of fraction.
        # The sum's bits are (133 + e) << 7 plus k, for the code 2 e + k; the exponent's last bits are added twice.
        return tl.inline_asm_elementwise(
            """{ .reg .b32 value, power, sum, other, six, one, far;
            mov.b32 six, 0x40c040c0; mov.b32 one, 0x3f803f80; mov.b32 far, 0x42804280;
            and.b32 value, $1, 0x7fff7fff;
            mul.rn.bf16x2 value, value, $2;
            min.bf16x2 value, value, six;
            and.b32 power, value, 0x7f807f80;
            max.bf16x2 power, power, one;
            fma.rn.bf16x2 sum, power, far, value;
            shr.u32 other, sum, 6;
            and.b32 other, other, 0x000e000e;
            add.u32 sum, sum, other;
            add.u32 sum, sum, 0x00060006;
            shr.u32 other, $1, 12;
            lop3.b32 sum, sum, other, 0x00080008, 0xd8;
            shr.u32 other, sum, 12;
            lop3.b32 $0, sum, other, 0xf0, 0xd8; }""",
            "=r,r,r",
            [pair, multiplier],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def _write(pairs, values, scales, row, START: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr):
    """Cast N pairs of each row and store them: bytes from the row's START on, and their groups' scales.

    values, scales: pointers to the first row's. row: [ROWS, 1], from 0 on.
    """
    EACH: tl.constexpr = GROUP // 2
    left, right = tl.split(tl.reshape(pairs & _SIGNS_OFF, (ROWS, N // 2, 2)))
    left, right = tl.split(tl.reshape(_larger(left, right), (ROWS, N // 4, 2)))
    largest = _larger(left, right)
    largest = tl.reshape(tl.maximum(_low(largest), _high(largest)), (ROWS, N // EACH, EACH // 4))
    stored, _, multiplier = group_scale(tl.max(largest, axis=2), "e2m1", True, "ue8m0")
    codes = _codes(pairs, spread(_twice(multiplier), ROWS, N, EACH)).to(tl.uint8)
    tl.store(values + row * (2 * N) + START + tl.arange(0, N)[None, :], codes)
    tl.store(scales + row * (2 * N // EACH) + START // EACH + tl.arange(0, N // EACH)[None, :], stored)


@triton.jit(do_not_specialize=["table_rows"])
def rotate_and_cast(
    x, positions, cos, sin, values, scales, table_rows, x_token, x_head, cos_stride, sin_stride,
    HEADS: tl.constexpr, CONJUGATE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Heads of 2 N pairs, the second N of which are rotated. x: int32, pairs of bfloat16. HEADS is a multiple of ROWS:
    a program's rows are heads of one token."""
    await_inputs()
    first = tl.program_id(0) * ROWS
    token, head = first // HEADS, (first % HEADS).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, N)[None, :]
    at = x + token.to(tl.int64) * x_token + head * x_head + row.to(tl.int64) * x_head + pair
    kept, pairs = tl.load(at), tl.load(at + N)
    # Of as many rows as the pairs: a row of the tables alone would be spread over the threads otherwise.
    position = tl.load(positions + token).to(tl.int64) + row * 0
    known = tl.broadcast_to((position >= 0) & (position < table_rows), (ROWS, N))
    c = tl.load(cos + position * cos_stride + pair, mask=known, other=1.0)
    s = tl.load(sin + position * sin_stride + pair, mask=known, other=0.0)
    if CONJUGATE:
        s = s * -1.0
    a, b = _low(pairs), _high(pairs)
    turned = _pair(fused_multiply_add(a, c, b * (s * -1.0)), fused_multiply_add(a, s, b * c))
    values += first.to(tl.int64) * (2 * N)
    scales += first.to(tl.int64) * (4 * N // GROUP)
    _write(kept, values, scales, row, 0, GROUP, ROWS, N)
    _write(tl.where(known, turned, pairs), values, scales, row, N, GROUP, ROWS, N)
