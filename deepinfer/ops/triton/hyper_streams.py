"""The four streams of the hyper-connections inside Triton kernels: read, after a sub-layer, mixed (model_spec 3.2)."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.quantize import rounded, widen


@triton.jit
def load_streams(trunk, D: tl.constexpr, mask):
    """The four streams of some columns, float32; trunk: pointers to the first one's."""
    r0 = widen(tl.load(trunk, mask=mask, other=0.0))
    r1 = widen(tl.load(trunk + D, mask=mask, other=0.0))
    r2 = widen(tl.load(trunk + 2 * D, mask=mask, other=0.0))
    r3 = widen(tl.load(trunk + 3 * D, mask=mask, other=0.0))
    return r0, r1, r2, r3


@triton.jit
def into_stream(post, comb, row, own, STREAM: tl.constexpr):
    """What x and the four streams count in a stream of R': [ROWS, 1] each; row, own: [ROWS]."""
    into = comb + row * 16 + STREAM
    of_x = tl.load(post + row * 4 + STREAM, mask=own, other=0.0)
    c0 = tl.load(into, mask=own, other=0.0)
    c1 = tl.load(into + 4, mask=own, other=0.0)
    c2 = tl.load(into + 8, mask=own, other=0.0)
    c3 = tl.load(into + 12, mask=own, other=0.0)
    return of_x[:, None], c0[:, None], c1[:, None], c2[:, None], c3[:, None]


@triton.jit
def mixing(pre, row, own):
    """What the four streams count in h: [ROWS, 1] each; row, own: [ROWS]."""
    w0 = tl.load(pre + row * 4, mask=own, other=0.0)
    w1 = tl.load(pre + row * 4 + 1, mask=own, other=0.0)
    w2 = tl.load(pre + row * 4 + 2, mask=own, other=0.0)
    w3 = tl.load(pre + row * 4 + 3, mask=own, other=0.0)
    return w0[:, None], w1[:, None], w2[:, None], w3[:, None]


@triton.jit
def posted(x, r0, r1, r2, r3, weights):
    """post_j x + sum_i comb_ij R_i, rounded to bfloat16, as float32."""
    value = weights[0] * x
    value += weights[1] * r0
    value += weights[2] * r1
    value += weights[3] * r2
    value += weights[4] * r3
    return rounded(value)


@triton.jit
def one_of(r0, r1, r2, r3, STREAM: tl.constexpr):
    low = r0 if STREAM == 0 else r1
    high = r2 if STREAM == 2 else r3
    return low if STREAM < 2 else high
