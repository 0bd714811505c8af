"""Reference of `finalize_verification_tl` (kernel_spec A.3, #35)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel

Optional = torch.Tensor | None


@functools.cache
def finalize_verification_tl(
    has_sum_smaller_probs: bool, has_confidence: bool, num_steps: int, num_stop_tokens: int
) -> Kernel:
    """What a step emits, by row (verified drafts) and by request (the last token), with counters."""

    def run(
        effective_accept: torch.Tensor,
        is_final_input: torch.Tensor,
        effective_token_ids: torch.Tensor,
        token_logprobs: torch.Tensor,
        sum_smaller_probs: Optional,
        top_logprobs: Optional,
        top_token_ids: Optional,
        ftp: torch.Tensor,
        seqlen_q: torch.Tensor,
        row_to_req: torch.Tensor,
        is_verify: torch.Tensor,
        accept_probs: Optional,
        confidence_pool: Optional,
        mtp_info_read_rows: Optional,
        stop_token_ids: Optional,
        last_valid_offset: torch.Tensor,
        num_generated_tokens: torch.Tensor,
        num_verified_tokens: torch.Tensor,
        batch_confidence_error: torch.Tensor,
        emitted_stop_token: Optional,
        sampled_token_ids: torch.Tensor,
        sampled_token_logprobs: torch.Tensor,
        sampled_sum_smaller_probs: Optional,
        sampled_top_logprobs: Optional,
        sampled_top_token_ids: Optional,
        verified_token_ids: torch.Tensor,
        verified_token_logprobs: torch.Tensor,
        verified_sum_smaller_probs: Optional,
        verified_top_logprobs: Optional,
        verified_top_token_ids: Optional,
    ) -> None:
        start, step = _places(ftp, row_to_req)
        live = step >= 0
        final = is_final_input & live
        request = row_to_req[final].long()
        last_valid_offset[request] = step[final].int()
        for value, verified, sampled in (
            (token_logprobs, verified_token_logprobs, sampled_token_logprobs),
            (sum_smaller_probs, verified_sum_smaller_probs, sampled_sum_smaller_probs),
            (top_logprobs, verified_top_logprobs, sampled_top_logprobs),
            (top_token_ids, verified_top_token_ids, sampled_top_token_ids),
        ):
            if value is not None and verified is not None and sampled is not None:
                accepted = effective_accept if value.dim() == 1 else effective_accept[:, None]
                verified.copy_(torch.where(accepted, value, 0))
                sampled[request] = value[final]
        verified_token_ids.copy_(torch.where(effective_accept, effective_token_ids, -1))
        sampled_token_ids[request] = effective_token_ids[final]

        verify = is_verify & live
        emitted = step[effective_accept & live & (step < num_steps)]
        num_generated_tokens.copy_(torch.bincount(emitted, minlength=num_steps))
        num_verified_tokens.copy_(torch.bincount(step[verify].clamp(max=num_steps - 1), minlength=num_steps))
        batch_confidence_error.zero_()
        if has_confidence:
            assert accept_probs is not None and confidence_pool is not None and mtp_info_read_rows is not None
            assert stop_token_ids is not None and emitted_stop_token is not None
            verify &= (mtp_info_read_rows >= 0) & (mtp_info_read_rows < confidence_pool.shape[0])
            estimate = confidence_pool[mtp_info_read_rows[verify].long()]
            batch_confidence_error.copy_((accept_probs[verify].double() - estimate).abs().sum())
            owner = torch.where(live, row_to_req, 0).long()
            stops = stop_token_ids[owner] if live.any() else stop_token_ids.new_empty(live.shape[0], 0)
            stop = ((effective_token_ids[:, None] == stops) & (stops != -1)).any(1) & live
            seen = torch.nn.functional.pad(stop.cumsum(0), (1, 0))
            rows = final.nonzero()[:, 0]
            emitted_stop_token[request] = seen[rows + 1] > seen[start[rows]]

    return run


def _places(ftp: torch.Tensor, row_to_req: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First row of each row's request, and its step in it (both int64); step -1 for a row of no request."""
    live = (row_to_req >= 0) & (row_to_req < ftp.shape[0])
    start = torch.zeros_like(row_to_req, dtype=torch.int64)
    start[live] = ftp[row_to_req[live].long()].long()
    step = torch.arange(row_to_req.shape[0], device=ftp.device) - start
    return start, torch.where(live & (start >= 0) & (step >= 0), step, -1)
