"""Reference of `store_mtp_info_tl` (kernel_spec A.5)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def store_mtp_info_tl(nextn: int, vocab_size: int, has_index: bool, has_confidence: bool) -> Kernel:
    """pool[slot * nextn + j] = what request of that slot has for draft j; slot 0 and slots outside are left out."""

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
        wanted = (write_slots > 0) & (write_slots < token_ids_pool.shape[0] // nextn)
        slots = write_slots[wanted].long()
        for value, pool in (
            (token_ids, token_ids_pool),
            (logprobs, logprobs_pool),
            (logprobs_index, logprobs_index_pool),
            (confidence, confidence_pool),
        ):
            if value is not None and pool is not None:
                whole = pool[: pool.shape[0] // nextn * nextn]
                whole.view(-1, nextn, *pool.shape[1:])[slots] = value[wanted]

    return run
