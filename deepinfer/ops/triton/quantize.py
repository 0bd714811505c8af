"""Narrow casts, group scales and dequantisation inside Triton kernels (kernel_spec 0 to 0.2).

Each is right bit by bit both compiled and interpreted. Triton's interpreter (3.5.1 to 3.7.1) truncates where float32
becomes bfloat16, gets ties, carries, subnormals and saturation of float8e4nv wrong, rounds twice in `fma`, and loses
subnormals where a narrow type is widened: there the same values are computed by integers. The compiled kernels use
the hardware's casts. `ops/reference/quantize.py` says what each computes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer import envs

INTERPRETED = tl.constexpr(envs.read(envs.TRITON_INTERPRET) not in ("", "0"))
E4M3_MAX = tl.constexpr(448.0)
E2M1_MAX = tl.constexpr(6.0)
E4M3_MARGIN = tl.constexpr(1e-4)
E2M1_MARGIN = tl.constexpr(6 * 2.0**-126)
E4M3_SMALLEST = tl.constexpr(2.0**-9)
FLOAT_MAX = tl.constexpr(3.4028234663852886e38)
_EXACT_HALVES = tl.constexpr(2.0**22)  # adding it rounds to multiples of 0.5
_EXACT_512THS = tl.constexpr(2.0**14)  # adding it rounds to multiples of 2^-9


@triton.jit
def widen(x):
    """bfloat16 (or float32) -> float32, exactly."""
    if x.dtype == tl.float32:
        return x
    else:
        if INTERPRETED:
            return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
        else:
            return x.to(tl.float32)


@triton.jit
def narrow(x):
    """float32 -> bfloat16, to nearest, ties to even."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def rounded(x):
    """float32 -> the nearest bfloat16, as float32."""
    if INTERPRETED:
        return widen(narrow(x))
    else:
        # Two at once: the cast of a single value is four times as slow.
        return tl.inline_asm_elementwise(
            "{ .reg .b32 both; cvt.rn.bf16x2.f32 both, $3, $2; shl.b32 $0, both, 16; and.b32 $1, both, 0xffff0000; }",
            "=f,=f,f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )


@triton.jit
def fused_multiply_add(a, b, c):
    """a * b + c of float32 with one rounding."""
    if INTERPRETED:
        # The product of two float32 is exact in float64. The sum is rounded to odd there, so that the second
        # rounding, to float32, gives what one rounding of the exact sum would.
        product = a.to(tl.float64) * b.to(tl.float64)
        addend = c.to(tl.float64)
        total = product + addend
        shadow = total - product
        error = (product - (total - shadow)) + (addend - shadow)
        bits = total.to(tl.int64, bitcast=True)
        step = tl.where((error > 0) == (total > 0), 1, -1).to(tl.int64)
        inexact = (error != 0) & (error == error) & ((bits & 1) == 0)
        return tl.where(inexact, bits + step, bits).to(tl.float64, bitcast=True).to(tl.float32)
    else:
        return tl.fma(a, b, c)


@triton.jit
def reciprocal(x):
    """1 / x of float32, rounded once."""
    if INTERPRETED:
        return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), x)
    else:
        return tl.inline_asm_elementwise("rcp.rn.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def encode_e4m3(x):
    """float32 -> e4m3 as uint8: nearest, ties to even, saturating at 448; NaN -> 0x7f."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
        small = tl.minimum(tl.abs(x), 1.0) + _EXACT_512THS
        subnormal = (small.to(tl.int32, bitcast=True)) & 0x7FFFFF
        code = tl.minimum(tl.where(magnitude >= 0x3C800000, normal, subnormal), 0x7E)
        return tl.where(magnitude > 0x7F800000, 0x7F, code | ((bits >> 24) & 0x80)).to(tl.uint8)
    else:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def decode_e4m3(code):
    """e4m3 as uint8 -> float32, exactly."""
    if INTERPRETED:
        wide = code.to(tl.int32)
        magnitude = wide & 0x7F
        subnormal = (magnitude.to(tl.float32) * E4M3_SMALLEST).to(tl.int32, bitcast=True)
        size = tl.where(magnitude < 8, subnormal, (magnitude + (120 << 3)) << 20)
        size = tl.where(magnitude == 0x7F, 0x7FC00000, size)
        return (size | ((wide & 0x80) << 24)).to(tl.float32, bitcast=True)
    else:
        return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def _e2m1_on_top(x):
    """float32 -> int32 whose four highest bits are the e2m1 code; the others mean nothing.

    Few and cheap instructions: this is what decides the speed of kernels that write e2m1.
    """
    if INTERPRETED:
        x = tl.where(x == x, x, E2M1_MAX)
    value = tl.minimum(tl.abs(x), E2M1_MAX)
    power = tl.maximum(value.to(tl.int32, bitcast=True) & 0x7F800000, 0x3F800000).to(tl.float32, bitcast=True)
    # Next to 2^22 times the value's power of two (1 at least) a sum is rounded to one bit of fraction. Its bits are
    # then (149 + e) << 23 plus k, for the code 2 e + k; the product adds k and twice the exponent's last three bits
    # in the four highest bits, where 10 + code, less 10, remains.
    halves = tl.full(power.shape, _EXACT_HALVES, tl.float32)
    total = tl.fma(power, halves, value).to(tl.int32, bitcast=True)
    code = total * ((1 << 28) + (1 << 6)) + (6 << 28)
    bits = x.to(tl.int32, bitcast=True)
    if INTERPRETED:
        return (code & 0x7FFFFFFF) | (bits & -0x80000000)
    else:
        # The same, of which the compiler would make two instructions.
        pick: tl.constexpr = "lop3.b32 $0, $1, $2, 0x80000000, 0xD8;"
        return tl.inline_asm_elementwise(pick, "=r,r,r", [code, bits], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def encode_e2m1(x):
    """float32 -> e2m1 codes 0..15 as int32: nearest, ties to the even code, saturating at 6; NaN -> 7.

    A NaN has to be a result of arithmetic, which on a GPU is positive.
    """
    return (_e2m1_on_top(x) >> 28) & 15


@triton.jit
def decode_e2m1(code):
    """e2m1 codes 0..15 as int32 -> float32, exactly."""
    # The three bits of magnitude at the top of float32's fraction and the bottom of its exponent are the value times
    # 2^-126: 0.5 is a subnormal there, as in e2m1.
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def pack_e2m1(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """float32 [ROWS, WIDTH] -> bytes [ROWS, WIDTH / 2] of two codes, the even column in the low half."""
    low, high = tl.split(tl.reshape(_e2m1_on_top(x), (ROWS, WIDTH // 2, 2)))
    both = ((low >> 4) & 0x0FFFFFFF) | (high & -0x10000000)
    return (both >> 24).to(tl.uint8)


@triton.jit
def unpack_e2m1(packed, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Bytes [ROWS, WIDTH / 2] -> values [ROWS, WIDTH] in float32."""
    wide = packed.to(tl.int32)
    both = tl.join(decode_e2m1(wide & 15), decode_e2m1(wide >> 4))
    return tl.reshape(both, (ROWS, WIDTH))


@triton.jit
def power_of_two(exponent):
    """2^exponent in float32, for int32 exponents from -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def decode_ue8m0(code):
    """A scale's byte -> float32: 2^(byte - 127)."""
    return (code.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def ceil_log2(x):
    """The exact ceiling of log2 of positive, normal float32, as int32."""
    return ((x.to(tl.int32, bitcast=True) - 1) >> 23) - 126


@triton.jit
def group_amax(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """The largest magnitude of each GROUP consecutive columns, [ROWS, WIDTH / GROUP]; NaN does not count."""
    size = tl.abs(tl.reshape(x, (ROWS, WIDTH // GROUP, GROUP)))
    if INTERPRETED:
        size = tl.where(size == size, size, 0.0)
    return tl.max(size, axis=2)


@triton.jit
def group_scale(amax, FMT: tl.constexpr, ROUND: tl.constexpr, SF: tl.constexpr):
    """The scale of groups with these largest magnitudes: (what is stored, its value, what values are multiplied by).

    FMT "e4m3" or "e2m1"; SF "ue8m0" and "e4m3" are stored as uint8, "fp32" as float32. All have amax's shape.
    """
    LARGEST: tl.constexpr = E4M3_MAX if FMT == "e4m3" else E2M1_MAX
    MARGIN: tl.constexpr = E4M3_MARGIN if FMT == "e4m3" else E2M1_MARGIN
    amax = tl.minimum(tl.maximum(amax, MARGIN), FLOAT_MAX)
    if ROUND:
        exponent = ceil_log2(amax * (1.0 / LARGEST))
        value = power_of_two(exponent)
        if SF == "ue8m0":
            return (exponent + 127).to(tl.uint8), value, power_of_two(-exponent)
        else:
            return value, value, power_of_two(-exponent)
    else:
        if SF == "e4m3":
            stored = encode_e4m3(tl.minimum(tl.maximum(amax, LARGEST * E4M3_SMALLEST) * (1.0 / LARGEST), E4M3_MAX))
            value = decode_e4m3(stored)
            return stored, value, reciprocal(value)
        else:
            largest = tl.full(amax.shape, LARGEST, tl.float32)
            value = tl.div_rn(amax, largest)
            return value, value, tl.div_rn(largest, amax)


@triton.jit
def spread(groups, ROWS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """One value a group, [ROWS, WIDTH / GROUP] -> [ROWS, WIDTH]."""
    wide = tl.broadcast_to(groups[:, :, None], (ROWS, WIDTH // GROUP, GROUP))
    return tl.reshape(wide, (ROWS, WIDTH))


@triton.jit
def encode(x, FMT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Scaled float32 [ROWS, WIDTH] -> bytes: e4m3 [ROWS, WIDTH] or e2m1 packed [ROWS, WIDTH / 2]."""
    if FMT == "e4m3":
        return encode_e4m3(x)
    else:
        return pack_e2m1(x, ROWS, WIDTH)


@triton.jit
def decode(codes, FMT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """What `encode` gives -> float32 [ROWS, WIDTH]."""
    if FMT == "e4m3":
        return decode_e4m3(codes)
    else:
        return unpack_e2m1(codes, ROWS, WIDTH)


@triton.jit
def nearest_e4m3(x):
    """float32 -> the nearest e4m3 as float32: ties to even, saturating at 448; NaN stays one."""
    size = tl.minimum(tl.abs(x), E4M3_MAX)
    power = tl.maximum(size.to(tl.int32, bitcast=True) & 0x7F800000, 0x3C800000).to(tl.float32, bitcast=True)
    # Next to 2^20 times the value's power of two (2^-6 at least) a sum is rounded to three bits of fraction.
    far = power * 1048576.0
    near = ((size + far) - far).to(tl.int32, bitcast=True) | (x.to(tl.int32, bitcast=True) & -0x80000000)
    return tl.where(x == x, near.to(tl.float32, bitcast=True), float("nan"))


@triton.jit
def quantize(
    x,
    FMT: tl.constexpr,
    GROUP: tl.constexpr,
    ROUND: tl.constexpr,
    SF: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """float32 [ROWS, WIDTH] -> (bytes as `encode` gives them, stored scales, their values), one scale a group."""
    stored, value, multiplier = group_scale(group_amax(x, ROWS, WIDTH, GROUP), FMT, ROUND, SF)
    scaled = x * spread(multiplier, ROWS, WIDTH, GROUP)
    return encode(scaled, FMT, ROWS, WIDTH), stored, value


@triton.jit
def quantize_and_back(
    x,
    FMT: tl.constexpr,
    GROUP: tl.constexpr,
    ROUND: tl.constexpr,
    SF: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """float32 [ROWS, WIDTH] -> (bytes, stored scales, the values that both stand for, in float32).

    STORED: whether the kernel also stores the bytes. The values are not decoded from e4m3 bytes then: for the store,
    ptxas (of Triton 3.6.0 and 3.7.1) makes one register of two pairs, and where the upper pair is used besides, it
    reads another one.
    """
    stored, value, multiplier = group_scale(group_amax(x, ROWS, WIDTH, GROUP), FMT, ROUND, SF)
    scaled = x * spread(multiplier, ROWS, WIDTH, GROUP)
    codes = encode(scaled, FMT, ROWS, WIDTH)
    plain = nearest_e4m3(scaled) if STORED and FMT == "e4m3" else decode(codes, FMT, ROWS, WIDTH)
    return codes, stored, plain * spread(value, ROWS, WIDTH, GROUP)
