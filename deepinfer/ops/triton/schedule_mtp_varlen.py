"""`compute_seqlens_q_by_confidence_rates_tl` in Triton (kernel_spec A.5).

One launch without a sort: every program counts, for the drafts of a few sequences, those of the whole batch that come
before them. It computes the batch's products itself: programs have no order, and a second launch would cost more.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2

_DRAFTS, _CHUNK = 32, 128


@triton.jit
def _times(product, rates, source, known, step, NEXTN: tl.constexpr):
    """The running product after one more draft; 0 for a fresh sequence."""
    return product * tl.load(rates + source * NEXTN + step, mask=known, other=0.0)


@triton.jit
def _number(product):
    """A NaN would come before nothing and after nothing, and more rows than there are would be given."""
    return tl.where(product == product, product, 0.0)


@triton.jit(do_not_specialize=["r", "rp", "budget"])
def _seqlens_q_by_confidence(
    remap, rates, cum_rates, seqlens_q, r, rp, budget,
    NEXTN: tl.constexpr, SEQUENCES: tl.constexpr, STEPS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * SEQUENCES
    sequence = first + tl.arange(0, SEQUENCES)
    source = tl.load(remap + sequence, mask=sequence < r, other=-1)
    known = (source >= 0) & (source < rp)
    step = tl.arange(0, STEPS)[None, :]
    own = tl.zeros((SEQUENCES, STEPS), tl.float32)
    product = tl.full((SEQUENCES,), 1.0, tl.float32)
    for index in tl.static_range(NEXTN):
        product = _times(product, rates, source, known, index, NEXTN)
        own = tl.where(step == index, _number(product)[:, None], own)
    place = sequence[:, None] * NEXTN + step
    inside = (sequence[:, None] < r) & (step < NEXTN)
    tl.store(cum_rates + place, own, mask=inside)

    own, place = tl.reshape(own, (SEQUENCES * STEPS, 1)), tl.reshape(place, (SEQUENCES * STEPS, 1))
    before = tl.zeros((SEQUENCES * STEPS, CHUNK), tl.int32)
    for start in range(0, r, CHUNK):
        other = start + tl.arange(0, CHUNK)
        origin = tl.load(remap + other, mask=other < r, other=-1)
        met = (origin >= 0) & (origin < rp)
        running = tl.full((CHUNK,), 1.0, tl.float32)
        for index in tl.static_range(NEXTN):
            running = _times(running, rates, origin, met, index, NEXTN)
            value = _number(running)[None, :]
            earlier = (other * NEXTN + index)[None, :] < place
            ahead = (value > own) | ((value == own) & earlier)
            before += (ahead & (other < r)[None, :]).to(tl.int32)
    rank = tl.reshape(tl.sum(before, axis=1), (SEQUENCES, STEPS))
    chosen = (rank < budget) & (step < NEXTN)
    tl.store(seqlens_q + sequence, 1 + tl.sum(chosen.to(tl.int32), axis=1), mask=sequence < r)


@functools.cache
def compute_seqlens_q_by_confidence_rates_tl(nextn: int) -> Kernel:
    """seqlens_q = 1 + how many of the sequence's drafts are among the total_q - R largest cumulative products."""
    steps = next_power_of_2(nextn)
    sequences = max(_DRAFTS // steps, 1)

    def run(
        remap: torch.Tensor, rates: torch.Tensor, cum_rates: torch.Tensor, seqlens_q: torch.Tensor, total_q: int
    ) -> None:
        r = remap.shape[0]
        launch(
            _seqlens_q_by_confidence,
            (cdiv(r, sequences),),
            *(remap, rates, cum_rates, seqlens_q, r, rates.shape[0], total_q - r),
            NEXTN=nextn,
            SEQUENCES=sequences,
            STEPS=steps,
            CHUNK=_CHUNK,
        )

    return run
