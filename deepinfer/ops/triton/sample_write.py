"""Log-probabilities of filtered rows in Triton, and lanes' masses of what is drawn from (kernel_spec A.1, 5 and 6)."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.exponential import exp
from deepinfer.ops.triton.inverse_cdf import fixed_point
from deepinfer.ops.triton.mass import mass_of
from deepinfer.ops.triton.sample_values import WRONG, disorder, order, value_of

PENALTY = tl.constexpr(5e-5)


@triton.jit
def residual_of(probability, draft):
    """What the target has beyond the draft, whose probability is taken a little lower; as mass_of, bits in int32."""
    return fixed_point(probability - exp(draft - PENALTY)).to(tl.int32)


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

    `programs` a row take its parts of ROWS * LANES values in turn, and add to the lanes once. Whole parts of rows that
    are neither wrong nor verified are asked for before the one ahead of them is worked on; within one of them, all ties
    at the threshold stay, or none does, but for the part that the last of those that stay is in: it is left for later.
    The last rows come first: the L2 cache may still have them from the first pass.
    """
    TILE: tl.constexpr = ROWS * LANES
    row = (tl.num_programs(0) // programs - 1 - tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    lane = tl.arange(0, LANES)
    place = tl.arange(0, ROWS)[:, None] * LANES + lane[None, :]
    source = logits + row * (stride8.to(tl.int64) * 8)
    target = logprobs + row * (out_stride8.to(tl.int64) * 8)
    whole = width // TILE
    await_inputs()
    inverse = tl.load(facts + row * 8)
    shift = tl.load(facts + row * 8 + 1)
    offset = tl.load(facts + row * 8 + 3)
    threshold = tl.load(facts + row * 8 + 4)
    state = tl.load(states + row * 2)
    cut = tl.load(states + row * 2 + 1)
    wrong = state == WRONG
    draft_row = pool
    there = wrong
    verify = state != state
    if REJECT:
        verify = tl.load(is_verify + row) != 0
        read, there = pool_row_of(read_rows, row, pool_rows, IDENTITY)
        draft_row = pool + read * (pool_stride8.to(tl.int64) * 8)
    masses = tl.zeros((LANES,), dtype=tl.int32)
    usual = (wrong == 0) & (verify == 0)
    above = disorder(order(threshold) + 1)
    mixed = cut // TILE
    # What is left for the second loop: the mixed part, the last one where it is not whole, or all of them. Not out of
    # the branch: Triton 3.5.1 does not compile a loop that begins at what comes out of one.
    begin = tl.where((whole < parts) & (whole % programs == program), whole, parts)
    step = tl.where((mixed < whole) & (begin == whole), whole - mixed, parts)
    begin = tl.where((mixed < whole) & (mixed % programs == program), mixed, begin)
    begin = tl.where(usual, begin, program)
    step = tl.where(usual, step, programs)
    if usual:
        x = tl.load(source + program * TILE + place, mask=place < tl.where(program < whole, TILE, 0), other=0.0)
        for part in range(program, whole, programs):
            following = part + programs
            ahead = tl.load(
                source + following * TILE + place, mask=place < tl.where(following < whole, TILE, 0), other=0.0
            )
            value = value_of(x, shift, inverse, offset)
            lowest = tl.where(part < mixed, threshold, tl.where(part == mixed, float("inf"), above))
            value = tl.where(x >= lowest, value, float("-inf"))
            tl.store(target + part * TILE + place, value, mask=part != mixed)
            if SAMPLE:
                masses += tl.sum(mass_of(value), 0)
            x = ahead
    for part in range(begin, parts, step):
        columns = part * TILE + place
        inside = columns < width
        x = tl.load(source + columns, mask=inside, other=float("-inf"))
        stays = (x > threshold) | ((x == threshold) & (columns <= cut))
        value = tl.where(stays, value_of(x, shift, inverse, offset), float("-inf"))
        value = tl.where(wrong, float("nan"), value)
        tl.store(target + columns, value, mask=inside)
        if SAMPLE:
            # Beyond the row's end a value is not below the threshold where that is -inf.
            value = tl.where(inside, value, float("-inf"))
            if REJECT:
                if verify:
                    draft = tl.load(draft_row + columns, mask=inside & there, other=float("-inf"))
                    mass = residual_of(exp(value), draft)
                else:
                    mass = mass_of(value)
            else:
                mass = mass_of(value)
            masses += tl.sum(mass, 0)
    if SAMPLE:
        tl.atomic_add(lanes + row * LANES + lane, masses, sem="relaxed")
