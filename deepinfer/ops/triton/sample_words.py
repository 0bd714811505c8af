"""The draw of inverse_cdf in 32 bits, for masses whose sum is below 2^32: the same numbers with fewer instructions.

Sums of masses are kept as the bits of an int32. Triton compares and divides uint32 as if it had a sign, and the
interpreter's sums of int32 do not wrap around: hence the ways around both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton import philox
from deepinfer.ops.triton.quantize import INTERPRETED


@triton.jit
def first_word(seed, subsequence):
    """`philox.word` of index 0; seed and subsequence are int64."""
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    c2 = subsequence.to(tl.uint32)
    c3 = (subsequence >> 32).to(tl.uint32)
    c0 = k0 ^ k0
    c1 = c0
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, tl.full((), 0xD2511F53, tl.uint32))
        high2 = tl.umulhi(c2, tl.full((), 0xCD9E8D57, tl.uint32))
        low0 = c0 * tl.full((), 0xD2511F53, tl.uint32)
        low2 = c2 * tl.full((), 0xCD9E8D57, tl.uint32)
        c0 = high2 ^ c1 ^ k0
        c1 = low2
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + tl.full((), 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full((), 0xBB67AE85, tl.uint32)
    return c0.to(tl.int64) & 0xFFFFFFFF


@triton.jit
def quotient(a, b):
    """a // b for int64 in [0, 2^32), b > 0."""
    if INTERPRETED:
        return a // b
    else:
        found = tl.inline_asm_elementwise(
            "div.u32 $0, $1, $2;", "=r,r,r", [a.to(tl.uint32), b.to(tl.uint32)], dtype=tl.uint32, is_pure=True, pack=1
        )
        return found.to(tl.int64) & 0xFFFFFFFF


@triton.jit
def below(total, seed, subsequence):
    """`inverse_cdf.below`: the first word, which is nearly always below the limit, in 32 bits."""
    limit = quotient(tl.full((), 4294967295, tl.int64), total) * total
    drawn = first_word(seed, subsequence)
    attempt = tl.zeros_like(total)
    while drawn >= limit:
        attempt += 1
        drawn = philox.word(seed, subsequence, attempt)
    return drawn - quotient(drawn, total) * total


@triton.jit
def added(masses):
    """Sum of masses, bits in int32, as int64."""
    if INTERPRETED:
        return tl.sum(masses.to(tl.int64) & 0xFFFFFFFF, 0)
    else:
        return tl.sum(masses, 0).to(tl.int64) & 0xFFFFFFFF


@triton.jit
def passed(masses, number):
    """Whether the sum up to and with each of `masses`, bits in int32, is at most `number`, int64 in [0, 2^32)."""
    if INTERPRETED:
        return tl.cumsum(masses.to(tl.int64) & 0xFFFFFFFF, 0) <= number
    else:
        # With the highest bit turned, words of int32 are in the order of uint32.
        return (tl.cumsum(masses, 0) ^ -2147483648) <= (number.to(tl.int32) ^ -2147483648)


@triton.jit
def lane_of(masses, rho):
    """`inverse_cdf.lane_of` for masses as bits in int32: (lane, what is left of rho)."""
    before = passed(masses, rho)
    return tl.sum(before.to(tl.int32), 0), rho - added(tl.where(before, masses, 0))


@triton.jit
def place_of(masses, rest):
    """`inverse_cdf.place_of` for masses as bits in int32."""
    return tl.sum(passed(masses, rest).to(tl.int32), 0)
