"""exp in f32 that gives the same bits on every device; see deepinfer/ops/reference/exponential.py.

Kernels that use it are launched with enable_fp_fusion=False.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.reference import exponential as reference

LOG2_E = tl.constexpr(reference.LOG2_E)
LN2_HIGH = tl.constexpr(reference.LN2_HIGH)
LN2_LOW = tl.constexpr(reference.LN2_LOW)
LOWEST = tl.constexpr(reference.LOWEST)
HIGHEST = tl.constexpr(reference.HIGHEST)
C7, C6, C5, C4, C3, C2 = map(tl.constexpr, reference.COEFFICIENTS)


@triton.jit
def exp(x):
    """e^x of a block of f32 values; 0 below -87 and for NaN."""
    inside = x > LOWEST
    x = tl.where(inside, x, LOWEST)
    x = tl.where(x < HIGHEST, x, HIGHEST)
    n = tl.floor(x * LOG2_E + 0.5)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    value = ((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2
    value = (value * r) * r + r + 1.0
    power = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(inside, value * power, 0.0)
