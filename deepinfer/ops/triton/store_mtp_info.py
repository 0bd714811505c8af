"""`store_mtp_info_tl` in Triton (kernel_spec A.5)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2

_BLOCK = 4096


@triton.jit(do_not_specialize=["p"])
def _store_mtp_info(
    write_slots, token_ids, logprobs, logprobs_index, confidence, token_ids_pool, logprobs_pool, logprobs_index_pool,
    confidence_pool, p, NEXTN: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    HAS_INDEX: tl.constexpr, HAS_CONFIDENCE: tl.constexpr,
):  # fmt: skip
    """A program has a piece of one draft's row; the first piece takes the single values along."""
    row = tl.program_id(0) // BLOCKS
    piece = tl.program_id(0) % BLOCKS
    slot = tl.load(write_slots + row // NEXTN).to(tl.int64)
    wanted = (slot > 0) & ((slot + 1) * NEXTN <= p)
    target = slot * NEXTN + row % NEXTN
    column = piece * BLOCK + tl.arange(0, BLOCK)
    mask = (column < WIDTH) & wanted
    read, write = row.to(tl.int64) * WIDTH + column, target * WIDTH + column
    tl.store(logprobs_pool + write, tl.load(logprobs + read, mask=mask), mask=mask)
    if HAS_INDEX:
        tl.store(logprobs_index_pool + write, tl.load(logprobs_index + read, mask=mask), mask=mask)
    first = wanted & (piece == 0)
    tl.store(token_ids_pool + target, tl.load(token_ids + row, mask=first), mask=first)
    if HAS_CONFIDENCE:
        tl.store(confidence_pool + target, tl.load(confidence + row, mask=first), mask=first)


@functools.cache
def store_mtp_info_tl(nextn: int, vocab_size: int, has_index: bool, has_confidence: bool) -> Kernel:
    """pool[slot * nextn + j] = what request of that slot has for draft j; slot 0 and slots outside are left out."""
    block = min(next_power_of_2(vocab_size), _BLOCK)
    pieces = cdiv(vocab_size, block)

    def run(
        write_slots: torch.Tensor,
        token_ids: torch.Tensor,
        logprobs: torch.Tensor,
        logprobs_index: torch.Tensor | None,
        confidence: torch.Tensor | None,
        token_ids_pool: torch.Tensor,
        logprobs_pool: torch.Tensor,
        logprobs_index_pool: torch.Tensor | None,
        confidence_pool: torch.Tensor | None,
    ) -> None:
        launch(
            _store_mtp_info,
            (write_slots.shape[0] * nextn * pieces,),
            *(write_slots, token_ids, logprobs, logprobs_index, confidence),
            *(token_ids_pool, logprobs_pool, logprobs_index_pool, confidence_pool, token_ids_pool.shape[0]),
            NEXTN=nextn,
            WIDTH=vocab_size,
            BLOCK=block,
            BLOCKS=pieces,
            HAS_INDEX=has_index,
            HAS_CONFIDENCE=has_confidence,
        )

    return run
