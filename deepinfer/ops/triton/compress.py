"""The compressor's kernels in Triton (kernel_spec A.12).

Strides of the slots reach the kernels divided by 8, so that Triton knows them to be multiples of 8: a slot of the real
model is no multiple of 16 elements, and its rows would be read 4 bytes at a time.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.quantize import narrow

_COLUMNS = 128
"""Columns of a warp: 16 bytes of each part a thread; of prefill's rows of one token, which have a part less to wait
for, twice as many, as what is the same for a row takes longer than its columns."""


@triton.jit
def _mixed(score0, latent0, score1, latent1):
    """The two latents weighted by the softmax of the two scores."""
    largest = tl.maximum(score0, score1)
    weight0, weight1 = tl.exp(score0 - largest), tl.exp(score1 - largest)
    share = 1.0 / (weight0 + weight1)
    return latent0 * (weight0 * share) + latent1 * (weight1 * share)


@triton.jit
def _of_token(table, row, stride, state, old, kept, mask):
    """A token's score or latent: from its ring where it is old (and kept there), else from its row (if it has one)."""
    before = tl.load(state, mask=mask & kept, other=0.0)
    return tl.where(old, before, tl.load(table + row * stride, mask=mask & (row >= 0), other=0.0))


@triton.jit
def _row_of(token, mirror, n, queries, known, HAS_INDEX: tl.constexpr):
    """Row of score and latent that holds a token of the chunk, int64; -1 where there is none."""
    if HAS_INDEX:
        inside = known & (token >= 0) & (token < queries)
        token = tl.load(mirror + token, mask=inside, other=-1)
    return tl.where(known & (token >= 0) & (token < n), token, -1).to(tl.int64)


@triton.jit(do_not_specialize=["n", "queries", "sequences", "slots", "ring", "rows", "slot_units"])
def _prefill(
    score, latent, state, state_block_idx, mapping, cu_q, cu_k, cu_c, mirror, out,
    n, queries, sequences, slots, ring, rows, dim,
    score_stride, latent_stride, slot_units, ring_stride, part_stride,
    RATIO: tl.constexpr, HAS_INDEX: tl.constexpr, UNIT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The first `rows` programs write one row of `out` each, the others one row of a ring each.

    A window that began before its chunk reads a row of the ring. If the chunk's last tokens overwrite that row, the
    program that does so writes the window's row of `out`, and then the ring's.
    """
    await_inputs()
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = column < dim
    keeps = tl.program_id(0) >= rows
    back = tl.program_id(0) - rows
    x = tl.program_id(0)
    i = tl.load(mapping + x, mask=x < rows, other=-1)
    if keeps:
        i, back = back // ring, back % ring
        x = tl.load(cu_c + i)
        mapped = (x >= 0) & (x < rows)
        mapped = mapped & (tl.load(mapping + x, mask=mapped, other=-1) == i)
    else:
        mapped = x >= 0
    known = (i >= 0) & (i < sequences)
    begin = tl.load(cu_q + i, mask=known, other=0)
    qlen = tl.load(cu_q + i + 1, mask=known, other=0) - begin
    klen = tl.load(cu_k + i + 1, mask=known, other=0) - tl.load(cu_k + i, mask=known, other=0)
    ident = x - tl.load(cu_c + i, mask=known, other=0)
    slot = tl.load(state_block_idx + i, mask=known, other=-1).to(tl.int64)
    held = state + slot * slot_units * UNIT + column
    present = (slot >= 0) & (slot < slots)
    qstart = klen - qlen
    new = known & (qstart >= 0) & (ident >= 0) & (ident < klen // RATIO - qstart // RATIO)
    position = (qstart // RATIO + ident) * RATIO
    old = position < qstart
    # How far behind the chunk's last token the one is that takes the old one's row.
    taker = (klen - 1 - position) % ring
    late = new & old & present & (taker < tl.minimum(qlen, ring))
    mine = mapped & (late == keeps) & ((keeps == 0) | (taker == back))
    mask = own & new & mine

    row = _row_of(begin + position - qstart, mirror, n, queries, new & mine & (position >= qstart), HAS_INDEX)
    at = held + (position % ring).to(tl.int64) * ring_stride
    latent0 = _of_token(latent + column, row, latent_stride, at + part_stride, old, old & present, mask)
    if RATIO == 1:
        value = latent0
    else:
        score0 = _of_token(score + column, row, score_stride, at, old, old & present, mask)
        # The last token of a window that the chunk completes is the chunk's own.
        row = _row_of(begin + position + 1 - qstart, mirror, n, queries, new & mine, HAS_INDEX)
        score1 = tl.load(score + row * score_stride + column, mask=mask & (row >= 0), other=0.0)
        latent1 = tl.load(latent + row * latent_stride + column, mask=mask & (row >= 0), other=0.0)
        value = _mixed(score0, latent0, score1, latent1)
    value = tl.where(mask, value, 0.0)
    tl.store(out + x.to(tl.int64) * dim + column, narrow(value), mask=own & mine)

    if keeps:
        tl.debug_barrier()  # what other threads of this program read of the ring's row, they have
        position = klen - 1 - back
        stored = known & (back < qlen) & (position >= 0) & present
        row = _row_of(begin + qlen - 1 - back, mirror, n, queries, stored, HAS_INDEX)
        mask = own & (row >= 0)
        at = held + (position % ring).to(tl.int64) * ring_stride
        tl.store(at, tl.load(score + row * score_stride + column, mask=mask), mask=mask)
        tl.store(at + part_stride, tl.load(latent + row * latent_stride + column, mask=mask), mask=mask)


@functools.cache
def compress_and_update_state_prefill_tl(DIM: int, COMPRESS_RATIO: int, HAS_INDEX: bool) -> Kernel:
    """kv_compressed of a chunk, then its last tokens into the rings; what is out of range counts as zeros.

    One launch. No two sequences may have one slot.
    """
    columns, warps = _tile(DIM, _COLUMNS if COMPRESS_RATIO > 1 else 2 * _COLUMNS)

    def run(
        score: torch.Tensor,
        latent: torch.Tensor,
        state_cache: torch.Tensor,
        state_block_idx: torch.Tensor,
        compressed_batch_mapping: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        cu_compressed_seqlens_q: torch.Tensor,
        mirror_cp_reverse_index: torch.Tensor | None,
        kv_compressed: torch.Tensor,
    ) -> None:
        mirror = mirror_cp_reverse_index if HAS_INDEX else None
        queries = mirror.shape[0] if mirror is not None else 0
        sequences, (slots, ring) = state_block_idx.shape[0], state_cache.shape[:2]
        unit, strides = _strides(score, latent, state_cache)
        constants = {"HAS_INDEX": HAS_INDEX, "UNIT": unit, "COLUMNS": columns, "num_warps": warps, "launch_pdl": True}
        rows = kv_compressed.shape[0]
        launch(
            _prefill, (rows + sequences * ring, cdiv(DIM, columns)),
            score, latent, state_cache, state_block_idx, compressed_batch_mapping, cu_seqlens_q, cu_seqlens_k,
            cu_compressed_seqlens_q, mirror, kv_compressed,
            score.shape[0], queries, sequences, slots, ring, rows, DIM, *strides, RATIO=COMPRESS_RATIO, **constants,
        )  # fmt: skip

    return run


@triton.jit(do_not_specialize=["slots", "ring", "slot_units"])
def _store_decode(
    score,
    latent,
    state,
    state_block_idx,
    context_lens,
    out,
    slots,
    ring,
    dim,
    score_stride,
    latent_stride,
    slot_units,
    ring_stride,
    part_stride,
    RATIO: tl.constexpr,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = column < dim
    length = tl.load(context_lens + row)
    slot = tl.load(state_block_idx + row).to(tl.int64)
    known = (length > 0) & (slot >= 0) & (slot < slots)
    at = state + slot * slot_units * UNIT + ((length - 1) % ring).to(tl.int64) * ring_stride + column
    value = tl.load(latent + row * latent_stride + column, mask=own, other=0.0)
    tl.store(at, tl.load(score + row * score_stride + column, mask=own, other=0.0), mask=own & known)
    tl.store(at + part_stride, value, mask=own & known)
    done = known & (length % RATIO == 0)
    if RATIO == 1:
        tl.store(out + row * dim + column, narrow(tl.where(done, value, 0.0)), mask=own)
    else:
        # Rows that complete a window are written by the launch that follows.
        tl.store(out + row * dim + column, narrow(tl.zeros([COLUMNS], tl.float32)), mask=own & (done == 0))


@triton.jit(do_not_specialize=["slots", "ring", "slot_units"])
def _combine_decode(
    state,
    state_block_idx,
    context_lens,
    out,
    slots,
    ring,
    dim,
    slot_units,
    ring_stride,
    part_stride,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    length = tl.load(context_lens + row)
    slot = tl.load(state_block_idx + row).to(tl.int64)
    mask = (column < dim) & (length > 0) & (slot >= 0) & (slot < slots) & (length % 2 == 0)
    first = state + slot * slot_units * UNIT + ((length - 2) % ring).to(tl.int64) * ring_stride + column
    second = state + slot * slot_units * UNIT + ((length - 1) % ring).to(tl.int64) * ring_stride + column
    value = _mixed(
        tl.load(first, mask=mask, other=0.0),
        tl.load(first + part_stride, mask=mask, other=0.0),
        tl.load(second, mask=mask, other=0.0),
        tl.load(second + part_stride, mask=mask, other=0.0),
    )
    tl.store(out + row * dim + column, narrow(value), mask=mask)


@functools.cache
def compress_and_update_state_decode_tl(DIM: int, COMPRESS_RATIO: int) -> Kernel:
    """All rows into their rings, then kv_compressed of those that complete a window, zeros for the others.

    Two launches for windows of two tokens, as rows of one step may share a ring; a window of one is its own row.
    """
    columns, warps = _tile(DIM, _COLUMNS)

    def run(
        score: torch.Tensor,
        latent: torch.Tensor,
        state_cache: torch.Tensor,
        state_block_idx: torch.Tensor,
        context_lens: torch.Tensor,
        kv_compressed: torch.Tensor,
    ) -> None:
        slots, ring = state_cache.shape[:2]
        unit, strides = _strides(score, latent, state_cache)
        grid = (score.shape[0], cdiv(DIM, columns))
        constants = {"UNIT": unit, "COLUMNS": columns, "num_warps": warps, "launch_pdl": True}
        tensors = (state_cache, state_block_idx, context_lens, kv_compressed)
        launch(
            _store_decode,
            grid,
            *(score, latent, *tensors, slots, ring, DIM, *strides),
            RATIO=COMPRESS_RATIO,
            **constants,
        )
        if COMPRESS_RATIO > 1:
            launch(_combine_decode, grid, *(*tensors, slots, ring, DIM, *strides[2:]), **constants)

    return run


def _tile(dim: int, each: int) -> tuple[int, int]:
    """Columns and warps of a program, `each` columns a warp."""
    columns = min(max(next_power_of_2(dim), 128), 1024)
    return columns, max(columns // each, 1)


def _strides(score: torch.Tensor, latent: torch.Tensor, state: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """(unit, strides of: score, latent, slots in units, ring rows, the two parts of a row)."""
    unit = math.gcd(state.stride(0), 8)
    return unit, (score.stride(0), latent.stride(0), state.stride(0) // unit, state.stride(1), state.stride(2))
