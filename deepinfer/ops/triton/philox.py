"""The random stream in Triton: cuRAND's Philox4x32-10 with offset 0 (kernel_spec B.2).

Words are int64 in [0, 2^32): Triton compares and divides uint32 as if it had a sign. A product of two words wraps
around 2^64, and its two halves are still right after the mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

MASK = tl.constexpr(0xFFFFFFFF)


@triton.jit
def block(seed, subsequence, number):
    """Words x, y, z, w of block `number`; seed (all 64 bits), subsequence and number are int64, of one shape."""
    k0 = seed & MASK
    k1 = (seed >> 32) & MASK
    c0 = number & MASK
    c1 = (number >> 32) & MASK
    c2 = subsequence & MASK
    c3 = (subsequence >> 32) & MASK
    for _ in tl.static_range(10):
        first = c0 * 0xD2511F53
        second = c2 * 0xCD9E8D57
        c0 = ((second >> 32) & MASK) ^ c1 ^ k0
        c1 = second & MASK
        c2 = ((first >> 32) & MASK) ^ c3 ^ k1
        c3 = first & MASK
        k0 = (k0 + 0x9E3779B9) & MASK
        k1 = (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


@triton.jit
def word(seed, subsequence, index):
    """Word `index` (int64) of the stream: x, y, z, w of block 0, then of block 1, and so on."""
    x, y, z, w = block(seed, subsequence, index >> 2)
    place = index & 3
    return tl.where(place == 0, x, tl.where(place == 1, y, tl.where(place == 2, z, w)))


@triton.jit
def uniform(value):
    """cuRAND's uniform number of a word: f32 in (0, 1]."""
    return value.to(tl.float32) * (1.0 / 4294967296.0) + (1.0 / 8589934592.0)


@triton.jit
def subsequence_of(position, CASE: tl.constexpr):
    """3 * position + CASE in 32 bits, sign-extended to int64."""
    return (position.to(tl.int64) * 3 + CASE).to(tl.int32).to(tl.int64)
