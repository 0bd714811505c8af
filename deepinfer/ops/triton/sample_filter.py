"""The filter of `fused_sample_tl` in Triton: log-softmax, top-p and top-k of rows (kernel_spec A.1, steps 1 to 4).

A row is cut into chunks, one program each, so that few rows fill a GPU too. Only the softmax's denominator is a sum of
floats, in an order that the chunks fix; every other sum is of integers. So a row's result does not depend on which
rows are beside it. The threshold is sought in the row's values by narrowing a bracket: COARSE passes over the row
split it eight-fold each, and are skipped once it holds at most CAPACITY values; those are collected and bisected.
Eight, not sixteen: each part costs five instructions a value, and one pass is enough for most rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.sample_values import (
    FILTERED,
    FINE,
    LOWEST_ORDER,
    PLAIN,
    WRONG,
    disorder,
    load_row,
    load_temperature,
    order,
    packed_of,
    reaches,
    targets_of,
    value_of,
)

COARSE = 3
CAPACITY = 4096
SPLIT = tl.constexpr(8)


@triton.jit(do_not_specialize=["stride8", "t_stride", "chunks"])
def chunk_sums(
    logits,
    stride8,
    temperatures,
    t_stride,
    partial,
    bins,
    sums,
    lanes,
    width,
    chunks,
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    BINS: tl.constexpr,
):
    """Largest value, smallest finite one, and sum of exponentials of each chunk; the row's scratch is zeroed."""
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    chunk = program % chunks
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * (stride8.to(tl.int64) * 8) + columns, mask=columns < width, other=float("-inf"))
    inverse = tl.div_rn(1.0, load_temperature(temperatures, row * t_stride))
    largest = tl.max(x, 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    target = partial + (row * chunks + chunk) * 4
    tl.store(target, largest)
    tl.store(target + 1, tl.min(tl.where(x == float("-inf"), float("inf"), x), 0))
    tl.store(target + 2, tl.sum(tl.exp((x - base) * inverse), 0))
    if chunk == 0:
        tl.store(lanes + row * LANES + tl.arange(0, LANES), tl.zeros((LANES,), dtype=tl.int32))
        tl.store(bins + row * BINS + tl.arange(0, BINS), tl.zeros((BINS,), dtype=tl.int64))
        tl.store(sums + row * 2 + tl.arange(0, 2), tl.zeros((2,), dtype=tl.int64))


@triton.jit(do_not_specialize=["t_stride", "p_stride", "k_stride", "chunks"])
def row_sums(
    temperatures,
    t_stride,
    top_p,
    p_stride,
    top_k,
    k_stride,
    partial,
    facts,
    states,
    brackets,
    workspace,
    width,
    chunks,
    CHUNKS: tl.constexpr,
    BRACKETS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """The rows' softmax from their chunks', and where the search for the threshold starts."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    source = partial + (row * chunks + chunk) * 4
    each = tl.load(source, mask=chunk < chunks, other=float("-inf"))
    smallest = tl.min(tl.load(source + 1, mask=chunk < chunks, other=float("inf")), 0)
    exponentials = tl.load(source + 2, mask=chunk < chunks, other=0.0)
    t = load_temperature(temperatures, row * t_stride)
    p = tl.load(top_p + row * p_stride)
    inverse = tl.div_rn(1.0, t)
    largest = tl.max(each, 0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(exponentials * tl.exp((each - largest) * inverse), 0)
    right = (total > 0.0) & (total < float("inf")) & (t < float("inf")) & (p == p)
    offset = -tl.log(total)
    _, _, wanted = targets_of(p, tl.load(top_k + row * k_stride), width)
    tl.store(states + row * 2, tl.where(right, tl.where(wanted, FILTERED, PLAIN), WRONG))
    tl.store(facts + row * 8, inverse)
    tl.store(facts + row * 8 + 1, -largest)
    tl.store(facts + row * 8 + 2, offset)
    tl.store(facts + row * 8 + 5, smallest)
    tl.store(workspace + row * 2, offset)
    tl.store(workspace + row * 2 + 1, -largest)
    # Below ln(2^-31) a token has no mass, so that top-p alone never ends there.
    start = tl.minimum(tl.maximum(smallest, largest + (-21.49 - offset) * t), largest)
    first = tl.where(width <= CAPACITY, LOWEST_ORDER, order(start)).to(tl.int64)
    bracket = brackets + row * BRACKETS
    tl.store(bracket, first)
    tl.store(bracket + 1, order(largest).to(tl.int64))
    tl.store(bracket + 2, tl.full((), 0, dtype=tl.int64) + width)
    tl.store(bracket + 3, tl.full((), 0, dtype=tl.int64))


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


@triton.jit(do_not_specialize=["stride8", "p_stride", "k_stride", "parts", "programs", "step"])
def split_bracket(
    logits,
    stride8,
    top_p,
    p_stride,
    top_k,
    k_stride,
    facts,
    states,
    brackets,
    bins,
    step,
    width,
    parts,
    programs,
    PART: tl.constexpr,
    BRACKETS: tl.constexpr,
    BINS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Pass `step` over the rows, `programs` a row: packed sums of all values from each pivot on."""
    row = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    if tl.load(states + row * 2) != FILTERED:
        return
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
    if held <= CAPACITY:
        return
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


@triton.jit(do_not_specialize=["stride8", "p_stride", "k_stride", "parts", "programs"])
def collect(
    logits,
    stride8,
    top_p,
    p_stride,
    top_k,
    k_stride,
    facts,
    states,
    brackets,
    bins,
    sums,
    listed,
    width,
    parts,
    programs,
    STEPS: tl.constexpr,
    PART: tl.constexpr,
    BRACKETS: tl.constexpr,
    BINS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """The probability above the last bracket, and a list of the values in it where they are few enough.

    The list is in any order: what is made of it are sums of whole numbers.
    """
    row = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    if tl.load(states + row * 2) != FILTERED:
        return
    mass, count, _ = targets_of(tl.load(top_p + row * p_stride), tl.load(top_k + row * k_stride), width)
    bracket = brackets + row * BRACKETS + STEPS * 4
    if STEPS == 0:
        first = tl.load(bracket)
        last = tl.load(bracket + 1)
        held = tl.load(bracket + 2)
    else:
        own = bins + row * BINS + (STEPS - 1) * SPLIT
        smallest = tl.load(facts + row * 8 + 5)
        first, last, held, above = narrowed(bracket - 4, own, smallest, mass, count, width, CAPACITY)
        if program == 0:
            keep_bracket(bracket, first, last, held, above)
    inverse, shift, offset = load_row(facts, row)
    kept = tl.full((), 0, dtype=tl.int64)
    for part in range(program, parts, programs):
        columns = part * PART + tl.arange(0, PART)
        inside = columns < width
        x = tl.load(logits + row * (stride8.to(tl.int64) * 8) + columns, mask=inside, other=float("-inf"))
        key = order(x)
        fine = (tl.exp(value_of(x, shift, inverse, offset)) * FINE).to(tl.int64)
        kept += tl.sum(tl.where(inside & (key > last), fine, 0), 0)
        chosen = inside & (key >= first) & (key <= last)
        many = tl.sum(chosen.to(tl.int32), 0)
        if (many > 0) & (held <= CAPACITY):
            # One atomic a part: rows beside each other count in the same line of the cache, where atomics queue.
            base = tl.atomic_add(sums + row * 2 + 1, many.to(tl.int64), sem="relaxed")
            place = base + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(listed + row * CAPACITY + place, x, mask=chosen)
    tl.atomic_add(sums + row * 2, kept, sem="relaxed")
