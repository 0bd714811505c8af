"""The context-parallel index kernels in Triton (kernel_spec A.18): prefix sums first, then every index on its own."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch

CHUNK = 1024
BLOCK = 256


@triton.jit
def _kept(sq, clip, ps, block):
    """Of a block of a sequence: the first kept token, and how many are kept."""
    first = tl.maximum(block * ps, clip)
    return first, tl.maximum(tl.minimum((block + 1) * ps, sq) - first, 0)


@triton.jit
def _sequence_of(starts, place, n, steps):
    """The sequence that each place is in: the last that starts at or before it. Empty ones are passed over."""
    low = place * 0
    high = low + n
    for _ in range(steps):
        middle = (low + high) // 2
        at_or_before = tl.load(starts + middle + 1, mask=middle < n, other=2147483647) <= place
        low = tl.where(at_or_before, middle + 1, low)
        high = tl.where(at_or_before, high, middle)
    return tl.minimum(low, n - 1)


@triton.jit(do_not_specialize=["n", "cp"])
def _mirror_starts(cu_q, cu_k, cu_lens, n, cp, RATIOS: tl.constexpr, COUNT: tl.constexpr, CHUNK: tl.constexpr):
    """Row 0 of cu_lens: where each sequence's mirror rows begin; row 1 + i: where its context begins by ratio i."""
    row = tl.program_id(0)
    out = cu_lens + row * (n + 1).to(tl.int64)
    total = 0
    tl.store(out, total)
    for first in range(0, n, CHUNK):
        lane = first + tl.arange(0, CHUNK)
        inside = lane < n
        sq = tl.load(cu_q + lane + 1, mask=inside, other=0) - tl.load(cu_q + lane, mask=inside, other=0)
        sk = tl.load(cu_k + lane + 1, mask=inside, other=0) - tl.load(cu_k + lane, mask=inside, other=0)
        length = 2 * ((sq + 2 * cp - 1) // (2 * cp))
        for index in tl.static_range(COUNT):
            length = tl.where(row == 1 + index, tl.maximum(sk // RATIOS[index], 1), length)
        length = tl.where(inside, length, 0)
        tl.store(out + lane + 1, total + tl.cumsum(length, 0), mask=inside)
        total += tl.sum(length, 0)


@triton.jit(do_not_specialize=["n", "cp", "rank", "steps", "tokens", "rows"])
def _mirror(cu_q, cu_k, cu_lens, reverse, index, ks, ke, n, cp, rank, steps, tokens, rows,
            RATIOS: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    first = tl.program_id(0) * BLOCK
    stretch = (tokens + BLOCK - 1) // BLOCK * BLOCK
    if first < stretch:
        token = first + tl.arange(0, BLOCK)
        mask = token < tokens
        sequence = _sequence_of(cu_q, token, n, steps)
        begin = tl.load(cu_q + sequence)
        ps = tl.maximum((tl.load(cu_q + sequence + 1) - begin + 2 * cp - 1) // (2 * cp), 1)
        block = (token - begin) // ps
        half = (block >= cp).to(tl.int32)
        owner = tl.where(half == 0, block, 2 * cp - 1 - block)
        row = tl.load(cu_lens + sequence) + half * ps + token - begin - block * ps
        tl.store(reverse + token, owner * rows + row, mask=mask)
    else:
        row = first - stretch + tl.arange(0, BLOCK)
        mask = row < rows
        sequence = _sequence_of(cu_lens, row, n, steps)
        begin = tl.load(cu_q + sequence)
        sq = tl.load(cu_q + sequence + 1) - begin
        sk = tl.load(cu_k + sequence + 1) - tl.load(cu_k + sequence)
        ps = tl.maximum((sq + 2 * cp - 1) // (2 * cp), 1)
        local = row - tl.load(cu_lens + sequence)
        half = local // ps
        u = tl.where(half == 0, rank, 2 * cp - 1 - rank) * ps + local - half * ps
        valid = u < sq
        tl.store(index + row, tl.where(valid, begin + u, -1), mask=mask)
        for which in tl.static_range(COUNT):
            start = tl.load(cu_lens + (1 + which) * (n + 1).to(tl.int64) + sequence)
            seen = tl.where(valid, (sk - sq + u + 1) // RATIOS[which], 0)
            into = which * rows.to(tl.int64) + row
            tl.store(ks + into, start, mask=mask)
            tl.store(ke + into, start + seen, mask=mask)


@functools.cache
def prepare_cp_mirror_tl(cp_size: int, compress_ratios: tuple[int, ...]) -> Kernel:
    """Token -> gathered mirror row; mirror row -> token, and the compressed context that it sees."""
    ratios = tuple(compress_ratios)

    def run(
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        cu_lens: torch.Tensor,
        mirror_cp_reverse_index: torch.Tensor,
        mirror_cp_index: torch.Tensor,
        ks_out: torch.Tensor,
        ke_out: torch.Tensor,
        cp_rank: int,
    ) -> None:
        n = cu_seqlens_q.shape[0] - 1
        tokens, rows = mirror_cp_reverse_index.shape[0], mirror_cp_index.shape[0]
        sizes = {"RATIOS": ratios, "COUNT": len(ratios)}
        launch(
            _mirror_starts, (1 + len(ratios),), cu_seqlens_q, cu_seqlens_k, cu_lens, n, cp_size, CHUNK=CHUNK, **sizes
        )
        grid = (cdiv(tokens, BLOCK) + cdiv(rows, BLOCK),) if n else (0,)
        launch(
            _mirror, grid, cu_seqlens_q, cu_seqlens_k, cu_lens, mirror_cp_reverse_index, mirror_cp_index, ks_out,
            ke_out, n, cp_size, cp_rank, n.bit_length(), tokens, rows, BLOCK=BLOCK, **sizes,
        )  # fmt: skip

    return run


@triton.jit(do_not_specialize=["n", "cp"])
def _boundary_starts(cu_q, cu_c, cu_lens, n, cp, CHUNK: tl.constexpr):
    """Row 0 of cu_lens: where each sequence's mirror rows begin; row 1 + k: how many rank k has kept before it."""
    row = tl.program_id(0)
    out = cu_lens + row * (n + 1).to(tl.int64)
    total = 0
    tl.store(out, total)
    for first in range(0, n, CHUNK):
        lane = first + tl.arange(0, CHUNK)
        inside = lane < n
        sq = tl.load(cu_q + lane + 1, mask=inside, other=0) - tl.load(cu_q + lane, mask=inside, other=0)
        suffix = tl.load(cu_c + lane + 1, mask=inside, other=0) - tl.load(cu_c + lane, mask=inside, other=0)
        ps = (sq + 2 * cp - 1) // (2 * cp)
        length = 2 * ps
        if row > 0:
            clip = tl.maximum(sq - suffix, 0)
            _, low = _kept(sq, clip, ps, row - 1)
            _, high = _kept(sq, clip, ps, 2 * cp - row)
            length = low + high
        length = tl.where(inside, length, 0)
        tl.store(out + lane + 1, total + tl.cumsum(length, 0), mask=inside)
        total += tl.sum(length, 0)


@triton.jit(do_not_specialize=["n", "cp", "rank", "steps", "padded", "tokens"])
def _boundary(cu_q, cu_c, cu_lens, contributed, reverse, n, cp, rank, steps, padded, tokens, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    stretch = (padded + BLOCK - 1) // BLOCK * BLOCK
    wide = (n + 1).to(tl.int64)
    if first < stretch:
        place = first + tl.arange(0, BLOCK)
        before = cu_lens + (1 + rank) * wide
        kept = place < tl.load(before + n)
        sequence = _sequence_of(before, place, n, steps)
        sq = tl.load(cu_q + sequence + 1) - tl.load(cu_q + sequence)
        clip = tl.maximum(sq - (tl.load(cu_c + sequence + 1) - tl.load(cu_c + sequence)), 0)
        ps = (sq + 2 * cp - 1) // (2 * cp)
        low, low_count = _kept(sq, clip, ps, rank)
        high, _ = _kept(sq, clip, ps, 2 * cp - 1 - rank)
        nth = place - tl.load(before + sequence)
        of_low = low + nth - rank * ps
        of_high = ps + high + nth - low_count - (2 * cp - 1 - rank) * ps
        row = tl.load(cu_lens + sequence) + tl.where(nth < low_count, of_low, of_high)
        tl.store(contributed + place, tl.where(kept, row, -1), mask=place < padded)
    else:
        token = first - stretch + tl.arange(0, BLOCK)
        sequence = _sequence_of(cu_c, token, n, steps)
        begin = tl.load(cu_c + sequence)
        sq = tl.load(cu_q + sequence + 1) - tl.load(cu_q + sequence)
        clip = tl.maximum(sq - (tl.load(cu_c + sequence + 1) - begin), 0)
        ps = tl.maximum((sq + 2 * cp - 1) // (2 * cp), 1)
        u = clip + token - begin
        block = u // ps
        owner = tl.where(block < cp, block, 2 * cp - 1 - block)
        low, low_count = _kept(sq, clip, ps, owner)
        high, _ = _kept(sq, clip, ps, block)
        nth = tl.where(block < cp, u - low, low_count + u - high)
        inside = (token < tokens) & (owner >= 0) & (owner < cp)
        earlier = tl.load(cu_lens + (1 + owner) * wide + sequence, mask=inside, other=0)
        tl.store(reverse + token, owner * padded + earlier + nth, mask=inside)


@functools.cache
def yoco_cp_boundary_fused_tl(cp_size: int) -> Kernel:
    """Kept mirror rows of this rank; kept token -> its place among the gathered kept rows."""

    def run(
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_q_c: torch.Tensor,
        cu_lens: torch.Tensor,
        yoco_contrib_index: torch.Tensor,
        yoco_gathered_reverse_index: torch.Tensor,
        cp_rank: int,
    ) -> None:
        n = cu_seqlens_q.shape[0] - 1
        padded, tokens = yoco_contrib_index.shape[0], yoco_gathered_reverse_index.shape[0]
        launch(_boundary_starts, (1 + cp_size,), cu_seqlens_q, cu_seqlens_q_c, cu_lens, n, cp_size, CHUNK=CHUNK)
        grid = (cdiv(padded, BLOCK) + cdiv(tokens, BLOCK),) if n else (0,)
        launch(
            _boundary, grid, cu_seqlens_q, cu_seqlens_q_c, cu_lens, yoco_contrib_index, yoco_gathered_reverse_index,
            n, cp_size, cp_rank, n.bit_length(), padded, tokens, BLOCK=BLOCK,
        )  # fmt: skip

    return run
