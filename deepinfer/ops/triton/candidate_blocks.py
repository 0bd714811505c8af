"""The candidate-block kernels in Triton (kernel_spec A.11)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, multiprocessors, next_power_of_2
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.index_math import eighth, joined, looked_up, lookup_tile, quarters, shift, split
from deepinfer.ops.triton.quantize import narrow, widen

_LARGEST_BF16 = tl.constexpr(3.3895313892515355e38)
_LOGITS = 4096
"""Logits a program reads at once: 16 bytes a load, four of them under way in each of 128 threads."""


@triton.jit(do_not_specialize=["n", "blocks", "max_len"])
def _candidate_block_max(
    logits,
    valid_lens,
    block_scores,
    valid_blocks,
    n,
    blocks,
    max_len,
    logits_stride,
    scores_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(valid_lens + row, mask=row < n, other=0)
    length = tl.minimum(tl.maximum(length, 0), max_len)
    valid = tl.minimum((length + BLOCK_SIZE - 1) // BLOCK_SIZE, blocks)
    if tl.program_id(1) == 0:
        tl.store(valid_blocks + row, valid)
    # The last valid block scores +inf whatever it holds, thus only whole blocks are read.
    part = tl.program_id(1)
    while part * BLOCKS < valid:
        block = part * BLOCKS + tl.arange(0, BLOCKS)
        whole = block < valid - 1
        column = block[:, None] * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
        mask = tl.broadcast_to(whole[:, None], (BLOCKS, BLOCK_SIZE))
        value = widen(tl.load(logits + row * logits_stride + column, mask=mask, other=float("-inf")))
        value = tl.where(value == value, tl.minimum(value, _LARGEST_BF16), float("-inf"))
        score = tl.where(whole, tl.max(value, 1), float("inf"))
        tl.store(block_scores + row * scores_stride + block, narrow(score), mask=block < valid)
        part += tl.num_programs(1)


@functools.cache
def candidate_block_max_tl(max_model_len: int, block_size: int) -> Kernel:
    """Largest logit of each valid block, at most the largest finite bf16 (NaN: -inf); +inf for the last valid one.

    valid_blocks' padding behind the n rows becomes 0; scores behind the valid blocks stay as they are.
    """

    def run(
        logits: torch.Tensor, valid_lens: torch.Tensor, block_scores: torch.Tensor, valid_blocks: torch.Tensor
    ) -> None:
        n, blocks = block_scores.shape
        size = _LOGITS // block_size
        # Few rows are shared out among programs; many are enough work by themselves.
        shares = cdiv(multiprocessors(logits.device) * 16, max(n, 1))
        launch(
            _candidate_block_max,
            (valid_blocks.shape[0], max(min(shares, cdiv(blocks, size)), 1)),
            logits,
            valid_lens,
            block_scores,
            valid_blocks,
            n,
            blocks,
            max_model_len,
            logits.stride(0),
            block_scores.stride(0),
            BLOCK_SIZE=block_size,
            BLOCKS=size,
            launch_pdl=True,
        )

    return run


@triton.jit(do_not_specialize=["stride8"])
def _candidate_compact_lens(
    candidate_blocks,
    valid_lens,
    compact_lens,
    stride8,
    TOPK_BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(valid_lens + row).to(tl.int64)
    total = tl.zeros([COLUMNS], tl.int32)
    for begin in range(0, TOPK_BLOCKS, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        block = tl.load(candidate_blocks + row * stride8 * 8 + column, mask=column < TOPK_BLOCKS, other=-1)
        # int64: a block number near 2^31 passes it when multiplied.
        held = tl.minimum(tl.maximum(length - block.to(tl.int64) * BLOCK_SIZE, 0), BLOCK_SIZE).to(tl.int32)
        total += tl.where(block >= 0, held, 0)
    tl.store(compact_lens + row, tl.sum(total, 0))


@functools.cache
def get_candidate_compact_lens_tl(topk_blocks: int, block_size: int) -> Kernel:
    """compact_lens = sum over blocks b >= 0 of clamp(valid_len - b*bs, 0, bs)."""

    def run(candidate_blocks: torch.Tensor, valid_lens: torch.Tensor, compact_lens: torch.Tensor) -> None:
        arguments = (candidate_blocks, valid_lens, compact_lens, eighth(candidate_blocks))
        columns = min(next_power_of_2(topk_blocks), 1024)
        constants = {"TOPK_BLOCKS": topk_blocks, "BLOCK_SIZE": block_size, "COLUMNS": columns}
        launch(_candidate_compact_lens, (candidate_blocks.shape[0],), *arguments, **constants, launch_pdl=True)

    return run


@triton.jit
def _restored(x, blocks, offset, end, BLOCK_SIZE: tl.constexpr, SHIFT: tl.constexpr):
    nth, place = split(x, BLOCK_SIZE, SHIFT)
    block = looked_up(blocks + nth, (x >= 0) & (x < end), -1)
    return tl.where(block >= 0, block * BLOCK_SIZE + place + offset, -1)


@triton.jit(do_not_specialize=["n", "indices_stride8", "blocks_stride8"])
def _restore_candidate_indices(
    compact_indices,
    candidate_blocks,
    output_idx_offset,
    n,
    topk_tokens,
    topk_blocks,
    indices_stride8,
    blocks_stride8,
    BLOCK_SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = rows[:, None].to(tl.int64)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    own = (row < n) & (column < topk_tokens)
    index = compact_indices + row * indices_stride8 * 8 + column
    x = tl.load(index, mask=own, other=-1)
    blocks = candidate_blocks + row * blocks_stride8 * 8
    offset = tl.zeros([ROWS, 1], tl.int32)
    if HAS_OFFSET:
        offset = tl.load(output_idx_offset + rows, mask=rows < n, other=0)[:, None]
    end = topk_blocks * BLOCK_SIZE
    first, second, third, fourth = quarters(x, ROWS, COLUMNS)
    restored = joined(
        _restored(first, blocks, offset, end, BLOCK_SIZE, SHIFT),
        _restored(second, blocks, offset, end, BLOCK_SIZE, SHIFT),
        _restored(third, blocks, offset, end, BLOCK_SIZE, SHIFT),
        _restored(fourth, blocks, offset, end, BLOCK_SIZE, SHIFT), ROWS, COLUMNS,
    )  # fmt: skip
    tl.store(index, restored, mask=own)


@functools.cache
def restore_candidate_indices_inplace_tl(
    topk_tokens: int, topk_blocks: int, block_size: int, has_offset: bool
) -> Kernel:
    """x -> block*bs + x % bs (+ offset) with block = candidate_blocks[row, x // bs] >= 0, anything else -1."""

    def run(
        compact_indices: torch.Tensor, candidate_blocks: torch.Tensor, output_idx_offset: torch.Tensor | None
    ) -> None:
        n = compact_indices.shape[0]
        rows, columns = lookup_tile(topk_tokens)
        launch(
            _restore_candidate_indices,
            (cdiv(n, rows), cdiv(topk_tokens, columns)),
            compact_indices,
            candidate_blocks,
            output_idx_offset if has_offset else None,
            n,
            topk_tokens,
            topk_blocks,
            eighth(compact_indices),
            eighth(candidate_blocks),
            BLOCK_SIZE=block_size,
            SHIFT=shift(block_size),
            HAS_OFFSET=has_offset,
            ROWS=rows,
            COLUMNS=columns,
            launch_pdl=True,
        )

    return run
