"""Values of the sampler's rows in Triton: log-softmax, their order, the mass and count of sets (kernel_spec A.1).

Values are compared as whole numbers in the same order (`order`). Mass (in 2^-31) and count of a set travel packed in
one int64: mass << 30 | count. All kernels are launched with enable_fp_fusion=False: `value_of` must give the same bits
in each of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

WRONG, PLAIN, FILTERED, BOUNDED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
LOWEST_ORDER = tl.constexpr(-2139095041)  # order(-inf)
NO_TARGET = tl.constexpr(1 << 40)
FINE = tl.constexpr(float(1 << 44))  # steps of the renormalising sum: exact, whatever the order


@triton.jit
def order(x):
    """f32 as int32 in the same order; -0 is +0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def disorder(key):
    """The f32 of a value of `order`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def value_of(x, shift, inverse, offset):
    """Log-softmax of logits / temperature."""
    return (x + shift) * inverse + offset


@triton.jit
def packed_of(x, inside, shift, inverse, offset):
    """Mass and count of each token; 0 where it is not inside."""
    mass = (tl.exp(value_of(x, shift, inverse, offset)) * 2147483648.0).to(tl.uint32).to(tl.int64)
    return tl.where(inside, (mass << 30) + 1, 0)


@triton.jit
def targets_of(top_p, top_k, width):
    """(mass, count, any) that end the descending walk; NO_TARGET where a filter is off."""
    by_mass = top_p < 1.0
    by_count = (top_k > 0) & (top_k < width)
    share = tl.where(by_mass & (top_p > 0.0), top_p, 0.0)
    mass = tl.where(by_mass, (share * 2147483648.0).to(tl.uint32).to(tl.int64) + 1, NO_TARGET)
    return mass, tl.where(by_count, top_k.to(tl.int64), NO_TARGET), by_mass | by_count


@triton.jit
def reaches(packed, mass, count):
    """Whether a set's mass or count ends the walk."""
    return ((packed >> 30) >= mass) | ((packed & 0x3FFFFFFF) >= count)


@triton.jit
def load_row(facts, row):
    """(inverse temperature, shift, offset) of a row."""
    return tl.load(facts + row * 8), tl.load(facts + row * 8 + 1), tl.load(facts + row * 8 + 2)


@triton.jit
def load_temperature(temperatures, index):
    """The temperature, not below 1e-5; NaN stays."""
    t = tl.load(temperatures + index)
    return tl.where(t < 1e-5, 1e-5, t)
