"""The draw of a token from fixed-point masses, shared by the samplers (kernel_spec B.2).

Columns are dealt to lanes, lane = column modulo lanes. A number below the total mass picks the lane, and what is left
of it picks the column within the lane. All sums are of integers: their order does not matter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.launch import cdiv, next_power_of_2
from deepinfer.ops.reference.inverse_cdf import lanes_of
from deepinfer.ops.triton import philox

__all__ = ["below", "depth_of", "fixed_point", "lane_of", "lanes_of", "place_of"]


def depth_of(width: int) -> int:
    """Columns in the fullest lane, rounded up to a power of two."""
    return next_power_of_2(cdiv(width, lanes_of(width)))


@triton.jit
def fixed_point(probability):
    """trunc(p * 2^31) as int64, for 0 <= p < 2; negative values count as 0."""
    value = tl.where(probability > 0.0, probability, 0.0) * 2147483648.0
    return value.to(tl.uint32).to(tl.int64)


@triton.jit
def below(total, seed, subsequence):
    """A number in [0, total), 0 < total < 2^32: words of the stream are drawn until one is below the limit."""
    limit = (4294967295 // total) * total
    attempt = tl.zeros_like(total)
    drawn = philox.word(seed, subsequence, attempt)
    while drawn >= limit:
        attempt += 1
        drawn = philox.word(seed, subsequence, attempt)
    return drawn % total


@triton.jit
def lane_of(masses, rho):
    """(lane, what is left of rho) for the lanes' masses, int64, and 0 <= rho < their sum."""
    passed = tl.cumsum(masses, 0) <= rho
    lane = tl.sum(passed.to(tl.int32), 0)
    return lane, rho - tl.sum(tl.where(passed, masses, 0), 0)


@triton.jit
def place_of(masses, rest):
    """Place within a lane of the column that `rest` falls on."""
    return tl.sum((tl.cumsum(masses, 0) <= rest).to(tl.int32), 0)
