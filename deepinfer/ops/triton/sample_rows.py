"""The first passes of `fused_sample_tl` in Triton: rows' softmax, and a bound of the values that a small top-k keeps.

A row is cut into chunks, one program each, so that few rows fill a GPU too. Only the softmax's denominator is a sum of
floats, in an order that the chunks fix.

The bound: a chunk's values are dealt to groups, and the count-th largest of all groups' largest values has `count`
values from it on. As they mostly lie in groups of their own, there are hardly more: a pass that compares and nothing
else lists them (sample_filter), where finding their threshold in the whole row takes passes of a hundred instructions a
value.

Rows that have a filter are put into one of two queues. The launches that filter take them from there, so that where
there are none each of their programs reads one number and ends.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.early import await_inputs, let_next_start
from deepinfer.ops.triton.quantize import INTERPRETED
from deepinfer.ops.triton.sample_values import (
    BOUNDED,
    FILTERED,
    LOWEST_ORDER,
    PLAIN,
    WRONG,
    load_temperature,
    order,
    targets_of,
)

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def exponentials(x, base, inverse, NORMAL: tl.constexpr):
    """exp((x - base) * inverse). NORMAL: none is subnormal, which takes two instructions less for the same bits."""
    scaled = (x - base) * inverse
    if NORMAL and not INTERPRETED:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [scaled * LOG2_E], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp(scaled)


@triton.jit(do_not_specialize=["stride8", "t_stride", "k_stride", "chunks", "kept"])
def chunk_sums(
    logits,
    stride8,
    temperatures,
    t_stride,
    top_k,
    k_stride,
    partial,
    bins,
    sums,
    lanes,
    groups,
    counts,
    width,
    chunks,
    kept,
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    BINS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Largest value, smallest finite one, and sum of exponentials of each chunk; the row's scratch is zeroed.

    kept: so many chunks, the last ones, stay in the L2 cache for the pass that writes, which begins with them.
    GROUPS: that the chunk is dealt to, each thread's values one, for their largest ones (`bound_of`); 0 for none. They
    are stored where the row has a top-k.
    """
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    chunk = program % chunks
    place = tl.arange(0, CHUNK)
    source = logits + row * (stride8.to(tl.int64) * 8) + chunk * CHUNK
    left = width - chunk * CHUNK
    await_inputs()
    if (left >= CHUNK) & (program >= tl.num_programs(0) - kept):
        x = tl.load(source + place, eviction_policy="evict_last")
    elif left >= CHUNK:
        x = tl.load(source + place, eviction_policy="evict_first")
    else:
        x = tl.load(source + place, mask=place < left, other=float("-inf"))
    inverse = tl.div_rn(1.0, load_temperature(temperatures, row * t_stride))
    if GROUPS > 0:
        each = tl.max(tl.max(tl.reshape(x, (CHUNK // (4 * GROUPS), GROUPS, 4)), 2), 0)
        count = tl.load(top_k + row * k_stride)
        if (count > 0) & (count < width):
            tl.store(groups + (row * chunks + chunk) * GROUPS + tl.arange(0, GROUPS), each)
        largest = tl.max(each, 0)
    else:
        largest = tl.max(x, 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    smallest = tl.min(x, 0)
    if smallest == float("-inf"):
        smallest = tl.min(tl.where(x == float("-inf"), float("inf"), x), 0)
    if (smallest - base) * inverse > -87.0:
        total = tl.sum(exponentials(x, base, inverse, True), 0)
    else:
        total = tl.sum(exponentials(x, base, inverse, False), 0)
    target = partial + (row * chunks + chunk) * 4
    tl.store(target, largest)
    tl.store(target + 1, smallest)
    tl.store(target + 2, total)
    if chunk == 0:
        tl.store(lanes + row * LANES + tl.arange(0, LANES), tl.zeros((LANES,), dtype=tl.int32))
        tl.store(bins + row * BINS + tl.arange(0, BINS), tl.zeros((BINS,), dtype=tl.int64))
        tl.store(sums + row * 2 + tl.arange(0, 2), tl.zeros((2,), dtype=tl.int64))
        if program == 0:
            tl.store(counts + tl.arange(0, 2), tl.zeros((2,), dtype=tl.int32))


@triton.jit
def bound_of(groups, length, largest, count, SIZE: tl.constexpr):
    """(order, how many groups): from this order on there are `count` values or a few more; `count` <= SIZE.

    So many groups have a value from there on. Nearly all of these values lie in groups of their own, as `count` is
    far below the number of groups: there are hardly more of them.
    """
    place = tl.arange(0, SIZE)
    key = order(tl.load(groups + place, mask=place < length, other=float("-inf"))).to(tl.int32)
    low = tl.full((), 0, dtype=tl.int64) + LOWEST_ORDER
    high = order(largest).to(tl.int64)
    found = tl.full((), SIZE, dtype=tl.int64)
    while (low < high) & (found > count + (count >> 3)):
        middle = (low + high + 1) >> 1
        here = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0).to(tl.int64)
        if here >= count:
            low = middle
            found = here
        else:
            high = middle - 1
    return low, found


@triton.jit(do_not_specialize=["t_stride", "p_stride", "k_stride", "chunks", "length", "rows"])
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
    groups,
    counts,
    queue,
    rows,
    width,
    chunks,
    length,
    CHUNKS: tl.constexpr,
    BRACKETS: tl.constexpr,
    CAPACITY: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The rows' softmax from their chunks', and where the search for the threshold starts.

    Rows without a filter are done but for writing. Others are put into a queue: where top-k is small into the first,
    as the search starts at a bound that their values are just above; `list_bounded` lists them, and no pass has to
    narrow that bracket. The queues' order is any. length: a row's groups, SIZE at most; SIZE 0 for none.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    source = partial + (row * chunks + chunk) * 4
    let_next_start()
    await_inputs()
    each = tl.load(source, mask=chunk < chunks, other=float("-inf"))
    smallest = tl.min(tl.load(source + 1, mask=chunk < chunks, other=float("inf")), 0)
    sums = tl.load(source + 2, mask=chunk < chunks, other=0.0)
    t = load_temperature(temperatures, row * t_stride)
    p = tl.load(top_p + row * p_stride)
    k = tl.load(top_k + row * k_stride)
    inverse = tl.div_rn(1.0, t)
    largest = tl.max(each, 0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(sums * tl.exp((each - largest) * inverse), 0)
    right = (total > 0.0) & (total < float("inf")) & (t < float("inf")) & (p == p)
    offset = -tl.log(total)
    _, count, wanted = targets_of(p, k, width)
    state = tl.where(right, tl.where(wanted, FILTERED, PLAIN), WRONG)
    tl.store(facts + row * 8, inverse)
    tl.store(facts + row * 8 + 1, -largest)
    tl.store(facts + row * 8 + 2, offset)
    tl.store(facts + row * 8 + 3, tl.where(right, offset, float("nan")))
    tl.store(facts + row * 8 + 4, float("-inf"))
    tl.store(facts + row * 8 + 5, smallest)
    tl.store(states + row * 2 + 1, tl.full((), 0, dtype=tl.int32) + width)
    tl.store(workspace + row * 2, offset)
    tl.store(workspace + row * 2 + 1, -largest)
    if state == FILTERED:
        # Below ln(2^-31) a token has no mass, so that top-p alone never ends there.
        start = tl.minimum(tl.maximum(smallest, largest + (-21.49 - offset) * t), largest)
        first = tl.where(width <= CAPACITY, LOWEST_ORDER, order(start)).to(tl.int64)
        held = tl.full((), 0, dtype=tl.int64) + width
        if SIZE > 0:  # noqa: SIM102  # decided when it is compiled, the next one when it runs
            if count <= SIZE // 4:
                low, many = bound_of(groups + row * length, length, largest, count, SIZE)
                if low > LOWEST_ORDER:
                    first = low
                    held = many
                    state = tl.full((), BOUNDED, dtype=tl.int32)
        bracket = brackets + row * BRACKETS
        tl.store(bracket, first)
        tl.store(bracket + 1, order(largest).to(tl.int64))
        tl.store(bracket + 2, held)
        tl.store(bracket + 3, tl.full((), 0, dtype=tl.int64))
        which = tl.where(state == BOUNDED, 0, 1)
        place = tl.atomic_add(counts + which, 1, sem="relaxed")
        tl.store(queue + which * rows + place, row.to(tl.int32))
    tl.store(states + row * 2, state)
