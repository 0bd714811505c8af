"""The end of a verification: what a decode step emits (kernel_spec A.3, #35)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


@dataclass(frozen=True)
class FinalizedVerification:
    """What a step emits, by request (sampled_*: the last token, [R]) and by query row (verified_*: drafts, [Q]).

    last_valid_offset: [R] int32 step of the final row, which is the number of accepted drafts.
    num_generated_tokens, num_verified_tokens: [num_steps] int32 drafts accepted and examined, by step.
    batch_confidence_error: scalar float32, sum of |estimate - confidence|; 0 without confidences.
    emitted_stop_token: [R] bool; None without confidences.
    Values by request are undefined for a request without rows.
    """

    last_valid_offset: torch.Tensor
    num_generated_tokens: torch.Tensor
    num_verified_tokens: torch.Tensor
    batch_confidence_error: torch.Tensor
    emitted_stop_token: torch.Tensor | None
    sampled_token_ids: torch.Tensor
    sampled_token_logprobs: torch.Tensor
    sampled_sum_smaller_probs: torch.Tensor | None
    sampled_top_logprobs: torch.Tensor | None
    sampled_top_token_ids: torch.Tensor | None
    verified_token_ids: torch.Tensor
    verified_token_logprobs: torch.Tensor
    verified_sum_smaller_probs: torch.Tensor | None
    verified_top_logprobs: torch.Tensor | None
    verified_top_token_ids: torch.Tensor | None


def finalize_verification(
    effective_accept: torch.Tensor,
    is_final: torch.Tensor,
    effective_token_ids: torch.Tensor,
    token_logprobs: torch.Tensor,
    sum_smaller_probs: torch.Tensor | None,
    top_logprobs: torch.Tensor | None,
    top_token_ids: torch.Tensor | None,
    ftp: torch.Tensor,
    seqlen_q: torch.Tensor,
    row_to_req: torch.Tensor,
    is_verify: torch.Tensor,
    num_steps: int,
    accept_probs: torch.Tensor | None = None,
    confidence_pool: torch.Tensor | None = None,
    mtp_info_read_rows: torch.Tensor | None = None,
    stop_token_ids: torch.Tensor | None = None,
) -> FinalizedVerification:
    """Sort a step's tokens into accepted drafts and last tokens, and count.

    Args:
        effective_accept, is_final: [Q] bool and effective_token_ids: [Q] int32, from `get_accept_result`.
        token_logprobs: [Q] float32; sum_smaller_probs: [Q] float32 or None.
        top_logprobs, top_token_ids: [Q, k] float32 and int32 strided rows, k >= 0, or both None.
        ftp, seqlen_q: [R] int32; row_to_req: [Q] int32; is_verify: [Q] bool.
        num_steps: length of the counters, at least 1; drafts examined at a later step count in the last one.
        accept_probs: [Q] float32; confidence_pool: [Pc] float32; mtp_info_read_rows: [Q] int32; stop_token_ids:
            [R, n] int32, -1 for none: all four, or none of them.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("finalize_verification")
    check.tensor("effective_accept", effective_accept, torch.bool, ("Q",), rows="contiguous")
    check.tensor("is_final", is_final, torch.bool, ("Q",), rows="contiguous")
    check.tensor("effective_token_ids", effective_token_ids, torch.int32, ("Q",), rows="contiguous")
    check.tensor("token_logprobs", token_logprobs, torch.float32, ("Q",), rows="contiguous")
    check.optional("sum_smaller_probs", sum_smaller_probs, torch.float32, ("Q",), rows="contiguous")
    check.optional("top_logprobs", top_logprobs, torch.float32, ("Q", "k"))
    check.optional("top_token_ids", top_token_ids, torch.int32, ("Q", "k"))
    check.require(
        (top_logprobs is None) == (top_token_ids is None), "top_token_ids", "must come together with top_logprobs"
    )
    check.tensor("ftp", ftp, torch.int32, ("R",), rows="contiguous")
    check.tensor("seqlen_q", seqlen_q, torch.int32, ("R",), rows="contiguous")
    check.tensor("row_to_req", row_to_req, torch.int32, ("Q",), rows="contiguous")
    check.tensor("is_verify", is_verify, torch.bool, ("Q",), rows="contiguous")
    check.whole_number("num_steps", num_steps, at_least=1)
    check.optional("accept_probs", accept_probs, torch.float32, ("Q",), rows="contiguous")
    check.optional("confidence_pool", confidence_pool, torch.float32, ("Pc",), rows="contiguous")
    check.optional("mtp_info_read_rows", mtp_info_read_rows, torch.int32, ("Q",), rows="contiguous")
    check.optional("stop_token_ids", stop_token_ids, torch.int32, ("R", "n"), rows="contiguous")
    confidence = (accept_probs, confidence_pool, mtp_info_read_rows, stop_token_ids)
    missing = sum(one is None for one in confidence)
    check.require(missing in (0, 4), "accept_probs", "and the three arguments after it must come together")

    has_confidence = missing == 0
    found = _outputs(
        (check.size("R"), check.size("Q"), num_steps), token_logprobs, sum_smaller_probs, top_logprobs, has_confidence
    )
    factory("finalize_verification_tl")(
        *(sum_smaller_probs is not None, has_confidence, num_steps),
        0 if stop_token_ids is None else stop_token_ids.shape[1],
    )(
        *(effective_accept, is_final, effective_token_ids, token_logprobs, sum_smaller_probs, top_logprobs),
        *(top_token_ids, ftp, seqlen_q, row_to_req, is_verify, *confidence),
        *(getattr(found, name) for name in FinalizedVerification.__dataclass_fields__),
    )
    return found


def _outputs(
    sizes: tuple[int, int, int],
    like: torch.Tensor,
    sum_smaller_probs: torch.Tensor | None,
    top_logprobs: torch.Tensor | None,
    has_confidence: bool,
) -> FinalizedVerification:
    r, q, num_steps = sizes

    def make(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=like.device)

    def top(dtype: torch.dtype, rows: int) -> torch.Tensor | None:
        return None if top_logprobs is None else make(dtype, rows, top_logprobs.shape[1])

    def small(rows: int) -> torch.Tensor | None:
        return None if sum_smaller_probs is None else make(torch.float32, rows)

    return FinalizedVerification(
        last_valid_offset=make(torch.int32, r),
        num_generated_tokens=make(torch.int32, num_steps),
        num_verified_tokens=make(torch.int32, num_steps),
        batch_confidence_error=make(torch.float32),
        emitted_stop_token=make(torch.bool, r) if has_confidence else None,
        sampled_token_ids=make(torch.int32, r),
        sampled_token_logprobs=make(torch.float32, r),
        sampled_sum_smaller_probs=small(r),
        sampled_top_logprobs=top(torch.float32, r),
        sampled_top_token_ids=top(torch.int32, r),
        verified_token_ids=make(torch.int32, q),
        verified_token_logprobs=make(torch.float32, q),
        verified_sum_smaller_probs=small(q),
        verified_top_logprobs=top(torch.float32, q),
        verified_top_token_ids=top(torch.int32, q),
    )
