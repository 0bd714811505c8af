"""The filter of `fused_sample_tl` in Triton: top-p and top-k of rows (kernel_spec A.1, steps 2 to 4).

Rows whose values have a bound (sample_rows) are in the first queue, and the values from it on are listed. The others
are in the second.

All sums are of integers, so a row's result does not depend on which rows are beside it, nor on how many programs there
are for it. The threshold of a row of the second queue is sought in its values by narrowing a bracket: COARSE passes
over the row split it eight-fold each, and are skipped once it holds at most CAPACITY values; those are collected and
bisected. Eight, not sixteen: each part costs five instructions a value, and one pass is enough for most rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.early import await_inputs, let_next_start
from deepinfer.ops.triton.sample_values import (
    FINE,
    LOWEST_ORDER,
    disorder,
    load_row,
    order,
    packed_of,
    reaches,
    targets_of,
    value_of,
)

COARSE = 3
CAPACITY = 4096
SPLIT = tl.constexpr(8)


@triton.jit
def pivot(first, last, smallest, index):
    """Where part `index` of the bracket [first, last] begins, in the order of values."""
    low = tl.where(first == LOWEST_ORDER, smallest, disorder(first.to(tl.int32)))
    share = index.to(tl.float32) * (1.0 / SPLIT)
    between = order(low * (1.0 - share) + disorder(last.to(tl.int32)) * share).to(tl.int64)
    return tl.where(index == 0, first, between)


@triton.jit
def narrowed(bracket, bins, smallest, mass, count, width, CAPACITY: tl.constexpr):
    """(first, last, values in it, packed sum above it): the part of the bracket that the threshold lies in.

    It is empty (last < first) where not even the whole row has the mass that top-p asks for.
    """
    first = tl.load(bracket)
    last = tl.load(bracket + 1)
    held = tl.load(bracket + 2)
    above = tl.load(bracket + 3)
    if held > CAPACITY:
        index = tl.arange(0, SPLIT)
        starts = pivot(first, last, smallest, index)
        sums = tl.load(bins + index)
        part = tl.max(tl.where(reaches(sums, mass, count), index, -1), 0)
        start = tl.sum(tl.where(index == part, starts, 0), 0)
        sum_here = tl.sum(tl.where(index == part, sums, 0), 0)
        next_start = tl.sum(tl.where(index == part + 1, starts, 0), 0)
        next_sum = tl.sum(tl.where(index == part + 1, sums, 0), 0)
        whole = tl.full((), 0, dtype=tl.int64) + width
        first = tl.where(part < 0, LOWEST_ORDER, start)
        last = tl.where(part == SPLIT - 1, last, next_start - 1)
        above = tl.where(part == SPLIT - 1, above, next_sum)
        held = tl.where(part < 0, whole, sum_here & 0x3FFFFFFF) - (above & 0x3FFFFFFF)
    return first, last, held, above


@triton.jit
def keep_bracket(bracket, first, last, held, above):
    """Store a bracket for the launches that follow."""
    tl.store(bracket, first)
    tl.store(bracket + 1, last)
    tl.store(bracket + 2, held)
    tl.store(bracket + 3, above)


@triton.jit
def shares_of(many, parts, FILL: tl.constexpr):
    """Programs for each of so many rows: FILL of them in all, four a row at least, and none without a part.

    How many rows are queued is not known where the launch is made: its programs take rows and shares of them in turn.
    """
    return tl.minimum(tl.maximum(FILL // many, 4), parts)


@triton.jit(do_not_specialize=["stride8", "parts"])
def list_bounded(
    logits,
    stride8,
    brackets,
    sums,
    listed,
    counts,
    queue,
    width,
    parts,
    PART: tl.constexpr,
    BRACKETS: tl.constexpr,
    CAPACITY: tl.constexpr,
    FILL: tl.constexpr,
):
    """List the values of the first queue's rows from their bounds on, as far as the list reaches; how many is told.

    A value of a thousand is one. Nothing but that is done here, and no thread waits for another, so that the pass is
    as fast as memory.
    """
    let_next_start()
    await_inputs()
    many = tl.load(counts)
    if many == 0:
        return
    programs = shares_of(many, parts, FILL)
    for unit in range(tl.program_id(0), many * programs, tl.num_programs(0)):
        row = tl.load(queue + unit // programs).to(tl.int64)
        lowest = tl.load(brackets + row * BRACKETS).to(tl.int32)
        for part in range(unit % programs, parts, programs):
            # Loaded one by one, as they are stored: from four of a thread they would be exchanged first.
            columns = tl.max_contiguous(part * PART + tl.arange(0, PART), 1)
            inside = columns < width
            x = tl.load(logits + row * (stride8.to(tl.int64) * 8) + columns, mask=inside, other=float("-inf"))
            chosen = inside & (order(x) >= lowest)
            place = tl.atomic_add(sums + row * 2 + 1 + columns * 0, 1, mask=chosen, sem="relaxed")
            tl.store(listed + row * CAPACITY + place, x, mask=chosen & (place < CAPACITY))


@triton.jit(do_not_specialize=["stride8", "p_stride", "k_stride", "parts", "step", "rows"])
def split_bracket(
    logits,
    stride8,
    top_p,
    p_stride,
    top_k,
    k_stride,
    facts,
    brackets,
    bins,
    counts,
    queue,
    rows,
    step,
    width,
    parts,
    PART: tl.constexpr,
    BRACKETS: tl.constexpr,
    BINS: tl.constexpr,
    CAPACITY: tl.constexpr,
    FILL: tl.constexpr,
):
    """Pass `step` over the rows of the second queue: packed sums of all values from each pivot on."""
    let_next_start()
    await_inputs()
    many = tl.load(counts + 1)
    if many == 0:
        return
    programs = shares_of(many, parts, FILL)
    for unit in range(tl.program_id(0), many * programs, tl.num_programs(0)):
        row = tl.load(queue + rows + unit // programs).to(tl.int64)
        program = unit % programs
        mass, count, _ = targets_of(tl.load(top_p + row * p_stride), tl.load(top_k + row * k_stride), width)
        smallest = tl.load(facts + row * 8 + 5)
        bracket = brackets + row * BRACKETS + step * 4
        own = bins + row * BINS + step * SPLIT
        if step == 0:
            first = tl.load(bracket)
            last = tl.load(bracket + 1)
            held = tl.load(bracket + 2)
        else:
            first, last, held, above = narrowed(bracket - 4, own - SPLIT, smallest, mass, count, width, CAPACITY)
            if program == 0:
                keep_bracket(bracket, first, last, held, above)
        if held > CAPACITY:
            inverse, shift, offset = load_row(facts, row)
            lane = tl.arange(0, SPLIT)
            found = tl.zeros((SPLIT,), dtype=tl.int64)
            for part in range(program, parts, programs):
                columns = part * PART + tl.arange(0, PART)
                inside = columns < width
                x = tl.load(logits + row * (stride8.to(tl.int64) * 8) + columns, mask=inside, other=float("-inf"))
                key = order(x)
                packed = packed_of(x, inside, shift, inverse, offset)
                for index in tl.static_range(SPLIT):
                    start = pivot(first, last, smallest, tl.full((), index, dtype=tl.int32)).to(tl.int32)
                    found += tl.where(lane == index, tl.sum(tl.where(key >= start, packed, 0), 0), 0)
            tl.atomic_add(own + lane, found, sem="relaxed")


@triton.jit(do_not_specialize=["stride8", "p_stride", "k_stride", "parts", "rows"])
def collect(
    logits,
    stride8,
    top_p,
    p_stride,
    top_k,
    k_stride,
    facts,
    brackets,
    bins,
    sums,
    listed,
    counts,
    queue,
    rows,
    width,
    parts,
    STEPS: tl.constexpr,
    PART: tl.constexpr,
    BRACKETS: tl.constexpr,
    BINS: tl.constexpr,
    CAPACITY: tl.constexpr,
    FILL: tl.constexpr,
):
    """The probability above the last bracket, and a list of the values in it where they are few enough.

    For the rows of the second queue. The list is in any order: what is made of it are sums of whole numbers.
    """
    let_next_start()
    await_inputs()
    many = tl.load(counts + 1)
    if many == 0:
        return
    programs = shares_of(many, parts, FILL)
    for unit in range(tl.program_id(0), many * programs, tl.num_programs(0)):
        row = tl.load(queue + rows + unit // programs).to(tl.int64)
        program = unit % programs
        mass, count, _ = targets_of(tl.load(top_p + row * p_stride), tl.load(top_k + row * k_stride), width)
        bracket = brackets + row * BRACKETS + STEPS * 4
        if STEPS == 0:
            first = tl.load(bracket)
            last = tl.load(bracket + 1)
            held = tl.load(bracket + 2)
            above = tl.load(bracket + 3)
        else:
            own = bins + row * BINS + (STEPS - 1) * SPLIT
            smallest = tl.load(facts + row * 8 + 5)
            first, last, held, above = narrowed(bracket - 4, own, smallest, mass, count, width, CAPACITY)
            if program == 0:
                keep_bracket(bracket, first, last, held, above)
        inverse, shift, offset = load_row(facts, row)
        kept = tl.full((), 0, dtype=tl.int64)
        lowest, highest = first.to(tl.int32), last.to(tl.int32)
        for part in range(program, parts, programs):
            columns = part * PART + tl.arange(0, PART)
            inside = columns < width
            x = tl.load(logits + row * (stride8.to(tl.int64) * 8) + columns, mask=inside, other=float("-inf"))
            key = order(x)
            if above > 0:
                fine = (tl.exp(value_of(x, shift, inverse, offset)) * FINE).to(tl.int64)
                kept += tl.sum(tl.where(inside & (key > highest), fine, 0), 0)
            chosen = inside & (key >= lowest) & (key <= highest)
            some = tl.sum(chosen.to(tl.int32), 0)
            if (some > 0) & (held <= CAPACITY):
                # One atomic a part: rows beside each other count in the same line of the cache, where atomics queue.
                base = tl.atomic_add(sums + row * 2 + 1, some.to(tl.int64), sem="relaxed")
                place = base + tl.cumsum(chosen.to(tl.int32), 0) - 1
                tl.store(listed + row * CAPACITY + place, x, mask=chosen)
        if above > 0:
            tl.atomic_add(sums + row * 2, kept, sem="relaxed")
