"""Tokens of filtered rows in Triton: drawn, or verified (kernel_spec A.1, step 7; B.2, B.3)."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton import philox
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.exponential import exp
from deepinfer.ops.triton.mass import mass_of
from deepinfer.ops.triton.sample_values import WRONG
from deepinfer.ops.triton.sample_words import added, below, first_word, lane_of, place_of
from deepinfer.ops.triton.sample_write import pool_row_of, residual_of


@triton.jit
def first_largest(source, width, largest, TILE: tl.constexpr):
    """Lowest index of the row's largest value."""
    found = tl.full((), 0, dtype=tl.int32) + width
    for start in range(0, width, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(source + place, mask=place < width, other=float("-inf"))
        found = tl.minimum(found, tl.min(tl.where((place < width) & (x == largest), place, width), 0))
    return found


@triton.jit(
    do_not_specialize=[
        "stride8", "out_stride8", "pool_stride8", "pool_rows", "position_stride", "seed_stride", "seed_offset",
    ]
)  # fmt: skip
def draw_tokens(
    logits,
    stride8,
    logprobs,
    out_stride8,
    pool,
    pool_stride8,
    pool_rows,
    read_rows,
    drafts,
    is_verify,
    positions,
    position_stride,
    seeds,
    seed_stride,
    seed_offset,
    facts,
    states,
    lanes,
    candidates,
    accepted,
    selected,
    chances,
    width,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    REJECT: tl.constexpr,
    IDENTITY: tl.constexpr,
):
    """A token of each row: drawn, or for verify rows the draft or a draw from the residual.

    What a lane and a row hold together is below 2^32.
    """
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    await_inputs()
    masses = tl.load(lanes + row * LANES + lane)
    right = tl.load(states + row * 2) != WRONG
    seed = tl.load(seeds + row * seed_stride) + seed_offset
    position = tl.load(positions + row * position_stride)
    total = added(masses)
    written = logprobs + row * (out_stride8.to(tl.int64) * 8)
    stream = philox.subsequence_of(position, 0)
    verify = tl.full((), 0, dtype=tl.int32) != 0
    accept = verify
    draft = tl.full((), -1, dtype=tl.int32)
    draft_row = pool
    there = verify
    if REJECT:
        verify = tl.load(is_verify + row) != 0
        read, there = pool_row_of(read_rows, row, pool_rows, IDENTITY)
        draft = tl.load(drafts + read, mask=there, other=-1)
        known = (draft >= 0) & (draft < width)
        draft_row = pool + read * (pool_stride8.to(tl.int64) * 8)
        expected = tl.load(draft_row + draft, mask=known, other=float("-inf"))
        target = tl.load(written + draft, mask=known & right, other=float("-inf"))
        uniform = philox.uniform(first_word(seed, philox.subsequence_of(position, 2)))
        difference = target - expected
        chance = exp(tl.where(difference > 0.0, 0.0, difference))
        accept = verify & known & (target > float("-inf")) & (uniform < chance)
        if verify:
            stream = philox.subsequence_of(position, 1)
        share = 1.0 - total.to(tl.float32) * (1.0 / 2147483648.0)
        share = tl.where(verify, tl.where(share > 0.0, share, 0.0), 1.0)
        tl.store(accepted + row, (accept | (verify == 0)) & right)
        tl.store(selected + row, expected)
        tl.store(chances + row, tl.where(right, share, 0.0))
    token = tl.where(accept, draft, -1)
    if right & (accept == 0):
        if total > 0:
            drawn, rest = lane_of(masses, below(total, seed, stream))
            columns = drawn + tl.arange(0, DEPTH) * LANES
            value = tl.load(written + columns, mask=columns < width, other=float("-inf"))
            if REJECT:
                if verify:
                    other = tl.load(draft_row + columns, mask=(columns < width) & there, other=float("-inf"))
                    mass = residual_of(exp(value), other)
                else:
                    mass = mass_of(value)
            else:
                mass = mass_of(value)
            token = drawn + place_of(mass, rest) * LANES
        elif verify:
            largest = -tl.load(facts + row * 8 + 1)
            token = first_largest(logits + row * (stride8.to(tl.int64) * 8), width, largest, LANES)
    tl.store(candidates + row, token)
