"""The threshold of a filtered row: one program a row bisects the values in its bracket (kernel_spec A.1, 2 to 4).

Where they are few enough to be listed they are read once, and stay in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.sample_values import (
    BOUNDED,
    FINE,
    LOWEST_ORDER,
    NO_TARGET,
    disorder,
    load_row,
    order,
    packed_of,
    reaches,
    targets_of,
    value_of,
)


@triton.jit
def sum_between(source, length, first, last, shift, inverse, offset, TILE: tl.constexpr):
    """Packed sum of the values of `source` with first <= order <= last."""
    total = tl.full((), 0, dtype=tl.int64)
    for start in range(0, length, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(source + place, mask=place < length, other=float("-inf"))
        key = order(x)
        chosen = (place < length) & (key >= first.to(tl.int32)) & (key <= last.to(tl.int32))
        total += tl.sum(packed_of(x, chosen, shift, inverse, offset), 0)
    return total


@triton.jit
def fine_between(source, length, first, last, shift, inverse, offset, TILE: tl.constexpr):
    """Probability, in steps of 2^-44, of the values of `source` with first < order <= last."""
    total = tl.full((), 0, dtype=tl.int64)
    for start in range(0, length, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(source + place, mask=place < length, other=float("-inf"))
        key = order(x)
        chosen = (place < length) & (key > first.to(tl.int32)) & (key <= last.to(tl.int32))
        total += tl.sum(tl.where(chosen, (tl.exp(value_of(x, shift, inverse, offset)) * FINE).to(tl.int64), 0), 0)
    return total


@triton.jit
def limits_between(source, length, first, last, TILE: tl.constexpr):
    """Smallest and largest order of the values of `source` within [first, last]; (last, first) if there are none."""
    lowest, highest = first.to(tl.int32), last.to(tl.int32)
    low, high = highest, lowest
    for start in range(0, length, TILE):
        place = start + tl.arange(0, TILE)
        key = order(tl.load(source + place, mask=place < length, other=float("-inf")))
        chosen = (place < length) & (key >= lowest) & (key <= highest)
        low = tl.minimum(low, tl.min(tl.where(chosen, key, highest), 0))
        high = tl.maximum(high, tl.max(tl.where(chosen, key, lowest), 0))
    return low.to(tl.int64), high.to(tl.int64)


@triton.jit
def highest_reaching(source, length, low, high, last, above, mass, count, shift, inverse, offset, TILE: tl.constexpr):
    """The largest order within [low, high] from which on the values up to `last` end the walk."""
    if length <= TILE:
        place = tl.arange(0, TILE)
        x = tl.load(source + place, mask=place < length, other=float("-inf"))
        key = order(x)
        packed = packed_of(x, (place < length) & (key <= last.to(tl.int32)), shift, inverse, offset)
        while low < high:
            middle = (low + high + 1) >> 1
            if reaches(above + tl.sum(tl.where(key >= middle.to(tl.int32), packed, 0), 0), mass, count):
                low = middle
            else:
                high = middle - 1
    else:
        while low < high:
            middle = (low + high + 1) >> 1
            if reaches(above + sum_between(source, length, middle, last, shift, inverse, offset, TILE), mass, count):
                low = middle
            else:
                high = middle - 1
    return low


@triton.jit
def cut_of(source, width, threshold, ties, TILE: tl.constexpr):
    """Index of the tie number `ties` (from 1) at the threshold; width if there are fewer."""
    cut = tl.full((), 0, dtype=tl.int32) + width
    seen = tl.full((), 0, dtype=tl.int64)
    for start in range(0, width, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(source + place, mask=place < width, other=float("-inf"))
        tied = (place < width) & (order(x) == threshold)
        here = tl.sum(tied.to(tl.int32), 0)
        if (seen < ties) & (seen + here >= ties):
            number = seen + tl.cumsum(tied.to(tl.int32), 0)
            cut = tl.min(tl.where(tied & (number == ties), place, width), 0)
        seen += here
    return cut


@triton.jit
def ties_to_keep(mass_left, count_left, each, width):
    """How many values equal to the threshold stay, `each` of them with this probability."""
    wide = width.to(tl.float32)
    many = tl.where(count_left < width, count_left, width.to(tl.int64))
    share = mass_left.to(tl.float32) * (1.0 / 2147483648.0)
    by_mass = tl.ceil(tl.minimum(tl.div_rn(share, tl.where(each > 0.0, each, 1.0)), wide)).to(tl.int64)
    limited = (mass_left < (NO_TARGET >> 1)) & (each > 0.0)
    return tl.where(limited, tl.minimum(many, by_mass), many)


@triton.jit
def settled(
    source, length, first, last, held, above, mass, count, width, shift, inverse, offset, TILE: tl.constexpr
):  # fmt: skip
    """(threshold's order, how many of the values equal to it stay, how many there are, probability kept of `source`).

    Where not even the whole row has the mass that top-p asks for, the order is below that of all numbers.
    """
    low, high = limits_between(source, length, first, last, TILE)
    everything = above + sum_between(source, length, low, last, shift, inverse, offset, TILE)
    stay = tl.full((), 0, dtype=tl.int64)
    tied = stay
    if (held > 0) & reaches(everything, mass, count):
        low = highest_reaching(source, length, low, high, last, above, mass, count, shift, inverse, offset, TILE)
        over = above + sum_between(source, length, low + 1, last, shift, inverse, offset, TILE)
        tied = sum_between(source, length, low, low, shift, inverse, offset, TILE) & 0x3FFFFFFF
        each = tl.exp(value_of(disorder(low.to(tl.int32)), shift, inverse, offset))
        stay = ties_to_keep(mass - (over >> 30), count - (over & 0x3FFFFFFF), each, width)
        kept = fine_between(source, length, low, last, shift, inverse, offset, TILE)
        kept += tl.minimum(stay, tied) * (each * FINE).to(tl.int64)
    else:
        kept = fine_between(source, length, first - 1, last, shift, inverse, offset, TILE)
        low = tl.full((), 0, dtype=tl.int64) + (LOWEST_ORDER - 1)
    return low, stay, tied, kept


@triton.jit(do_not_specialize=["stride8", "p_stride", "k_stride", "rows"])
def find_threshold(
    logits,
    stride8,
    top_p,
    p_stride,
    top_k,
    k_stride,
    facts,
    states,
    brackets,
    sums,
    listed,
    counts,
    queue,
    rows,
    width,
    STEPS: tl.constexpr,
    BRACKETS: tl.constexpr,
    CAPACITY: tl.constexpr,
    TILE: tl.constexpr,
    SMALL: tl.constexpr,
):
    """Queued rows' threshold, the index of the last tie kept, and the offset of renormalised log-probabilities."""
    await_inputs()
    bounded = tl.load(counts)
    unit = tl.program_id(0)
    if unit >= bounded + tl.load(counts + 1):
        return
    row = tl.load(queue + tl.where(unit < bounded, unit, rows + unit - bounded)).to(tl.int64)
    state = tl.load(states + row * 2)
    inverse, shift, offset = load_row(facts, row)
    threshold = tl.full((), float("-inf"), dtype=tl.float32)
    cut = tl.full((), 0, dtype=tl.int32) + width
    top = tl.load(top_p + row * p_stride)
    mass, count, _ = targets_of(top, tl.load(top_k + row * k_stride), width)
    bracket = brackets + row * BRACKETS + tl.where(state == BOUNDED, 0, STEPS * 4)
    first = tl.load(bracket)
    last = tl.load(bracket + 1)
    held = tl.load(bracket + 2)
    above = tl.load(bracket + 3)
    kept = tl.load(sums + row * 2)
    seen = tl.load(sums + row * 2 + 1)
    whole = logits + row * (stride8.to(tl.int64) * 8)
    source = whole
    length = tl.full((), 0, dtype=tl.int64) + width
    if ((state == BOUNDED) | (held <= CAPACITY)) & (seen <= CAPACITY):
        source = listed + row * CAPACITY
        length = seen
    low = first
    stay = length
    tied = length
    if length <= SMALL:
        low, stay, tied, more = settled(
            source, length, first, last, held, above, mass, count, width, shift, inverse, offset, SMALL
        )
    else:
        low, stay, tied, more = settled(
            source, length, first, last, held, above, mass, count, width, shift, inverse, offset, TILE
        )
    kept += more
    if low >= LOWEST_ORDER:
        threshold = disorder(low.to(tl.int32))
        if (stay < tied) & (low > LOWEST_ORDER):
            cut = cut_of(whole, width, low, stay, TILE)
    offset -= tl.log(kept.to(tl.float32) * (1.0 / FINE))
    tl.store(facts + row * 8 + 3, offset)
    tl.store(facts + row * 8 + 4, threshold)
    tl.store(states + row * 2 + 1, cut)
