"""Drafts of a step into the pool that the next step verifies from (kernel_spec A.5, #40)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def store_mtp_info(
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
    """Write each request's drafts to rows slot * nextn ... slot * nextn + nextn - 1 of the pools.

    Args:
        write_slots: [R] int32, unique but for 0; slot 0 belongs to padding and is never written, nor is a slot that
            is negative or not wholly within the pools.
        token_ids: [R, nextn] int32; logprobs: [R, nextn, W] float32; logprobs_index: [R, nextn, W] int32 or None;
            confidence: [R, nextn] float32 or None.
        token_ids_pool: [P] int32; logprobs_pool: [P, W] float32; logprobs_index_pool: [P, W] int32 and
            confidence_pool: [P] float32, there where their sources are. All contiguous.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("store_mtp_info")
    check.tensor("write_slots", write_slots, torch.int32, ("R",), rows="contiguous")
    check.tensor("token_ids", token_ids, torch.int32, ("R", "nextn"), rows="contiguous")
    check.tensor("logprobs", logprobs, torch.float32, ("R", "nextn", "W"), rows="contiguous")
    check.optional("logprobs_index", logprobs_index, torch.int32, ("R", "nextn", "W"), rows="contiguous")
    check.optional("confidence", confidence, torch.float32, ("R", "nextn"), rows="contiguous")
    check.tensor("token_ids_pool", token_ids_pool, torch.int32, ("P",), rows="contiguous")
    check.tensor("logprobs_pool", logprobs_pool, torch.float32, ("P", "W"), rows="contiguous")
    check.optional("logprobs_index_pool", logprobs_index_pool, torch.int32, ("P", "W"), rows="contiguous")
    check.optional("confidence_pool", confidence_pool, torch.float32, ("P",), rows="contiguous")
    has_index, has_confidence = logprobs_index is not None, confidence is not None
    pair = "must be given exactly where"
    check.require((logprobs_index_pool is not None) == has_index, "logprobs_index_pool", f"{pair} logprobs_index is")
    check.require((confidence_pool is not None) == has_confidence, "confidence_pool", f"{pair} confidence is")
    nextn, width = check.size("nextn"), check.size("W")
    check.require(nextn > 0 and width > 0, "logprobs", f"must have drafts and columns, not {list(logprobs.shape)}")
    factory("store_mtp_info_tl")(nextn, width, has_index, has_confidence)(
        *(write_slots, token_ids, logprobs, logprobs_index, confidence),
        *(token_ids_pool, logprobs_pool, logprobs_index_pool, confidence_pool),
    )
