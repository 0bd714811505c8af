"""Log-probabilities and tokens of filtered rows in Triton (kernel_spec A.1, steps 5 to 7; B.2, B.3)."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton import philox
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.exponential import exp
from deepinfer.ops.triton.inverse_cdf import below, fixed_point, lane_of, place_of
from deepinfer.ops.triton.sample_values import WRONG, value_of

PENALTY = tl.constexpr(5e-5)


@triton.jit
def residual_of(probability, draft):
    """What the target has beyond the draft, whose probability is taken a little lower."""
    return fixed_point(probability - exp(draft - PENALTY))


@triton.jit
def pool_row_of(read_rows, row, pool_rows, IDENTITY: tl.constexpr):
    """(pool row, whether there is one): a row outside of the pool is never read."""
    read = row
    if not IDENTITY:
        read = tl.load(read_rows + row).to(tl.int64)
    return read, (read >= 0) & (read < pool_rows)


@triton.jit(do_not_specialize=["stride8", "out_stride8", "pool_stride8", "pool_rows", "parts", "programs"])
def write_logprobs(
    logits,
    stride8,
    logprobs,
    out_stride8,
    pool,
    pool_stride8,
    pool_rows,
    read_rows,
    is_verify,
    facts,
    states,
    lanes,
    width,
    parts,
    programs,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    SAMPLE: tl.constexpr,
    REJECT: tl.constexpr,
    IDENTITY: tl.constexpr,
):
    """Stored log-probabilities, and the mass of every lane of what is drawn from: residual or probability.

    `programs` a row take its parts in turn, and add to the lanes once.
    """
    await_inputs()
    row = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    lane = tl.arange(0, LANES)
    place = tl.arange(0, ROWS)[:, None] * LANES + lane[None, :]
    source = logits + row * (stride8.to(tl.int64) * 8)
    target = logprobs + row * (out_stride8.to(tl.int64) * 8)
    inverse = tl.load(facts + row * 8)
    shift = tl.load(facts + row * 8 + 1)
    offset = tl.load(facts + row * 8 + 3)
    threshold = tl.load(facts + row * 8 + 4)
    wrong = tl.load(states + row * 2) == WRONG
    cut = tl.load(states + row * 2 + 1)
    draft_row = pool
    there = wrong
    verify = wrong
    if REJECT:
        verify = tl.load(is_verify + row) != 0
        read, there = pool_row_of(read_rows, row, pool_rows, IDENTITY)
        draft_row = pool + read * (pool_stride8.to(tl.int64) * 8)
    masses = tl.zeros((LANES,), dtype=tl.int32)
    for part in range(program, parts, programs):
        columns = part * (ROWS * LANES) + place
        inside = columns < width
        x = tl.load(source + columns, mask=inside, other=float("-inf"))
        stays = (x > threshold) | ((x == threshold) & (columns <= cut))
        value = tl.where(stays, value_of(x, shift, inverse, offset), float("-inf"))
        value = tl.where(wrong, float("nan"), value)
        tl.store(target + columns, value, mask=inside)
        if SAMPLE:
            probability = tl.where(inside, exp(value), 0.0)
            mass = fixed_point(probability)
            if REJECT:  # noqa: SIM102  # decided when it is compiled, the next one when it runs
                if verify:
                    draft = tl.load(draft_row + columns, mask=inside & there, other=float("-inf"))
                    mass = residual_of(probability, draft)
            masses += tl.sum(mass.to(tl.int32), 0)
    if SAMPLE:
        tl.atomic_add(lanes + row * LANES + lane, masses, sem="relaxed")


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
    """A token of each row: drawn, or for verify rows the draft or a draw from the residual."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    right = tl.load(states + row * 2) != WRONG
    masses = tl.load(lanes + row * LANES + tl.arange(0, LANES)).to(tl.int64) & 0xFFFFFFFF
    total = tl.sum(masses, 0)
    seed = tl.load(seeds + row * seed_stride) + seed_offset
    position = tl.load(positions + row * position_stride)
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
        uniform = philox.uniform(philox.word(seed, philox.subsequence_of(position, 2), tl.full((), 0, dtype=tl.int64)))
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
            lane, rest = lane_of(masses, below(total, seed, stream))
            columns = lane + tl.arange(0, DEPTH) * LANES
            probability = exp(tl.load(written + columns, mask=columns < width, other=float("-inf")))
            mass = fixed_point(probability)
            if REJECT:  # noqa: SIM102
                if verify:
                    other = tl.load(draft_row + columns, mask=(columns < width) & there, other=float("-inf"))
                    mass = residual_of(probability, other)
            token = lane + place_of(mass, rest) * LANES
        elif verify:
            largest = -tl.load(facts + row * 8 + 1)
            token = first_largest(logits + row * (stride8.to(tl.int64) * 8), width, largest, LANES)
    tl.store(candidates + row, token)
