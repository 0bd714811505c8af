"""`gate_topk` in Triton (model_spec 3.9)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import launch, next_power_of_2

_NOTHING = tl.constexpr(-(2**63))


@triton.jit
def _score(logit):
    """sqrt(softplus(logit)), the logit itself above 20."""
    power = tl.exp(tl.minimum(logit, 20.0))
    whole = 1.0 + power
    # log(1 + power) to the last bits: what the sum lost of a small power is made good by the quotient.
    lost = whole - 1.0
    soft = tl.where(lost == 0.0, power, tl.div_rn(tl.log(whole) * power, tl.where(lost == 0.0, 1.0, lost)))
    soft = tl.where(logit > 20.0, logit, soft)
    return tl.sqrt_rn(tl.where(logit == logit, soft, logit))


@triton.jit
def _ordered(value):
    """float32 -> int64 of the same order, equal for both zeros; a NaN is minus infinity."""
    value = tl.where(value == value, value, float("-inf")) + 0.0
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit(do_not_specialize=["scaling"])
def _gate_topk(
    logits, bias, bias_image, is_image, valid, ids, weights, scaling,
    EXPERTS: tl.constexpr, TOPK: tl.constexpr, IMAGES: tl.constexpr, VALID: tl.constexpr,
    COLUMNS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, COLUMNS)
    inside = expert < EXPERTS
    at = logits + row * EXPERTS
    added = tl.load(bias + expert, mask=inside, other=0.0)
    if IMAGES:
        of_image = tl.load(bias_image + expert, mask=inside, other=0.0)
        added = tl.where(tl.load(is_image + row) != 0, of_image, added)
    ranked = _score(tl.load(at + expert, mask=inside, other=0.0)) + added
    # Rank and id in one number: the largest is the best score, of equal ones that with the lowest id.
    key = tl.where(inside, (_ordered(ranked) << 32) | (COLUMNS - expert), _NOTHING)
    rank = tl.arange(0, RANKS)
    chosen = tl.zeros([RANKS], tl.int32)
    for place in tl.static_range(TOPK):
        best = tl.max(key, axis=0)
        key = tl.where(key == best, _NOTHING, key)
        chosen = tl.where(rank == place, COLUMNS - (best & 0xFFFFFFFF).to(tl.int32), chosen)
    live = rank < TOPK
    score = tl.where(live, _score(tl.load(at + chosen, mask=live, other=0.0)), 0.0)
    total = tl.sum(score, axis=0) + 1e-20
    weight = tl.div_rn(score, tl.zeros([RANKS], tl.float32) + total) * scaling
    if VALID:
        counts = tl.load(valid + row) != 0
        chosen = tl.where(counts, chosen, -1)
        weight = tl.where(counts, weight, 0.0)
    out = row * TOPK + rank
    tl.store(ids + out, chosen, mask=live)
    tl.store(weights + out, weight, mask=live)


@functools.cache
def gate_topk(experts: int, topk: int, scaling: float) -> Kernel:
    """The best `topk` of `experts` by sqrt(softplus(logit)) + bias, and their weights times `scaling`.

    One launch; a warp has a row (of up to 1024 experts), so that looking for the best needs no shared memory.
    """
    columns, ranks = next_power_of_2(experts), next_power_of_2(topk)
    warps = max(columns // 1024, 1)

    def run(
        logits: torch.Tensor,
        bias: torch.Tensor,
        bias_image: torch.Tensor | None,
        is_image: torch.Tensor | None,
        valid: torch.Tensor | None,
        ids: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        images = None if is_image is None else is_image.view(torch.uint8)
        counted = None if valid is None else valid.view(torch.uint8)
        launch(
            _gate_topk, (logits.shape[0],), logits, bias, bias_image, images, counted, ids, weights,
            scaling, EXPERTS=experts, TOPK=topk, IMAGES=images is not None,
            VALID=counted is not None, COLUMNS=columns, RANKS=ranks, num_warps=warps,
        )  # fmt: skip

    return run
