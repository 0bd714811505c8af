"""The running softmax of attention kernels: one tile of keys after another, to the same bits wherever it is computed.

What depends on the order of a sum, and so on how a compiler lays a tile out, is only the product itself, whose order
is that of the keys. Weights are summed up as integers, whose sum has no order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.product import operand
from deepinfer.ops.triton.quantize import narrow

LOG2_E = 1.4426950408889634
NONE = tl.constexpr(-1e30)
"""Below every logit; finite, so that differences of it are numbers."""
_ONE = tl.constexpr(0x3F800000)
_PART = tl.constexpr(2.0**-23)


@triton.jit
def start(HEADS: tl.constexpr, COLUMNS: tl.constexpr):
    """Before the first tile: sums [HEADS, COLUMNS], the weights' total and the largest logit [HEADS], float32."""
    sums = tl.zeros([HEADS, COLUMNS], tl.float32)
    return sums, tl.zeros([HEADS], tl.float32), tl.full([HEADS], NONE, tl.float32)


@triton.jit
def step(sums, total, largest, z, keys):
    """Go on over a tile: logits z [HEADS, KEYS] as powers of two, -inf for no key; keys as an operand [KEYS, COLUMNS].

    A tile without a key leaves everything as it is. A weight counts in multiples of 2^-23 in the total: next to 1, the
    bits of a number from 1 to 2 are their count. A NaN among the logits comes to the result by the product.
    """
    larger = tl.maximum(largest, tl.max(z, axis=1))
    weights = tl.exp2(z - larger[:, None])
    faded = tl.exp2(largest - larger)
    counts = (weights + 1.0).to(tl.int32, bitcast=True) - _ONE
    total = total * faded + tl.sum(counts, axis=1).to(tl.float32) * _PART
    sums = tl.dot(operand(narrow(weights)), keys, sums * faded[:, None])
    return sums, total, larger


@triton.jit
def finish(sums, total, largest, sink):
    """What the values come to beside a sink [HEADS], a logit as a power of two without a value: [HEADS, COLUMNS]."""
    total += tl.exp2(sink - largest)
    # 0 where there are neither keys nor a sink; an endless sink leaves nothing to the keys.
    share = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    return sums * share[:, None]
