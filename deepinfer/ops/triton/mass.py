"""The fixed-point mass of a log-probability in Triton: `fixed_point(exp(x))` with half of the instructions.

Why the bits are the same, for x < ln 2 and NaN:

- `fixed_point(exp(x))` is 0 for x <= -22: e^-22 * 2^31 = 0.6 is below 1. So x may be kept from falling below -22, with
  one maximum in place of what `exp` does about its ends, zeros and NaN (a maximum of NaN and -22 is -22: 0 there too).
- n = floor(t), t = x * LOG2_E + 0.5 as `exp` rounds it, lies in [-32, 1]. Around 1.5 * 2^23 the float32 numbers are the
  whole ones, so that 1.5 * 2^23 + 31 + t, rounded down, is 1.5 * 2^23 + 31 + n. Its lowest nine bits are those of
  31 + n; shifted by 23 they are what adds 31 + n to an exponent, and all others are shifted out.
- LN2_HIGH has ten bits, n six: n * LN2_HIGH is exact, and fusing it with the difference rounds no other value.
- The polynomial is `exp`'s, in its order. Its value is in (0.7, 1.5): adding n + 31 to its exponent is the product by
  2^n and by 2^31, neither of which rounds, as none is subnormal.

All 3 216 024 534 floats below 0.69 and NaN were compared once. Kernels that use it are launched with
enable_fp_fusion=False.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.exponential import C2, C3, C4, C5, C6, C7, LN2_HIGH, LN2_LOW, LOG2_E
from deepinfer.ops.triton.quantize import INTERPRETED

LEAST = tl.constexpr(-22.0)
MAGIC = tl.constexpr(12582912.0 + 31.0)  # 1.5 * 2^23, and the 31 of 2^31; 0x4B40001F


@triton.jit
def mass_of(x):
    """trunc(e^x * 2^31) of f32 values below ln 2 as int32 (bits of a word below 2^32); 0 for NaN."""
    x = tl.maximum(x, LEAST)
    t = x * LOG2_E + 0.5
    if INTERPRETED:
        n = tl.floor(t)
        power = (n.to(tl.int32) + 31) << 23
        r = x - n * LN2_HIGH
    else:
        raised = tl.inline_asm_elementwise(
            "add.rm.f32 $0, $1, 0f4B40001F;", "=f,f", [t], dtype=tl.float32, is_pure=True, pack=1
        )
        n = raised - MAGIC
        power = raised.to(tl.int32, bitcast=True) << 23
        r = tl.fma(n, -LN2_HIGH, x)
    r = r - n * LN2_LOW
    value = ((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2
    value = (value * r) * r + r + 1.0
    return (value.to(tl.int32, bitcast=True) + power).to(tl.float32, bitcast=True).to(tl.uint32).to(tl.int32)
