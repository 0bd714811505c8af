"""Sampling and verification of draft tokens: the last kernel of a step (kernel_spec A.1, part B)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.random_sampling import SEED_TYPES

DRAFT_SEED_OFFSET = 1_000_000_007
"""Added to the seeds of any tag but "default": the drafts' stream."""


@dataclass(frozen=True)
class LogitsTransformInputs:
    """Per row: temperature [Q] f32, top_p [Q] f32, top_k [Q] int32."""

    temperatures: torch.Tensor
    top_ps: torch.Tensor
    top_ks: torch.Tensor


@dataclass(frozen=True)
class SamplingKernelInputs:
    """What a draw needs beside it: seeds [Q] uint64 (or int64, the same bits), positions [Q] int32."""

    logits: LogitsTransformInputs
    seq_seeds: torch.Tensor
    sample_positions: torch.Tensor


def fused_sample(
    logits: torch.Tensor,
    sampling_inputs: LogitsTransformInputs | SamplingKernelInputs,
    *,
    tag: str = "default",
    is_verify: torch.Tensor | None = None,
    logprobs_out: torch.Tensor | None = None,
    last_nextn_token_logprobs: torch.Tensor | None = None,
    last_next_n_token_ids: torch.Tensor | None = None,
    mtp_info_read_rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Temperature, then top-p and top-k together on the unfiltered softmax, renormalisation, and a draw.

    A row's results are a function of that row alone, bit by bit: of its logits, parameters, seed, position and draft.
    The token is what `random_sampling` draws from `reference.exponential.exp(logprobs)`, on every backend and device.

    Temperatures below 1e-5 count as 1e-5, where only the largest logits have mass. top_k is off when it is 0,
    negative, or >= V; top_p is off from 1 on, and keeps one token at 0 or below. A row with a NaN, +inf or no finite
    logit gets candidate -1, accept False, and NaN log-probabilities; so does one whose temperature is NaN or infinite,
    or whose top_p is NaN. On a CPU such parameters are refused instead: on a GPU that would take a wait for the device.

    Args:
        logits: [Q, V] f32, V >= 32, never modified. Row strides of this and of all log-probabilities are multiples of
            8, their addresses of 16.
        sampling_inputs: with seeds and positions a token is drawn for each row.
        tag: "default", or anything else for the drafts' stream.
        is_verify: [Q] bool: rows that verify a draft; the others draw. Given, the next two are needed too.
        logprobs_out: [Q, V] f32 for the log-probabilities; made when it is None.
        last_nextn_token_logprobs: [P, V] f32: log-probabilities that drafts were drawn from.
        last_next_n_token_ids: [P] int32: the drafts; -1, or a value that is no column, rejects.
        mtp_info_read_rows: [Q] int32: pool row of each row, by default the same; one that is none rejects.

    Returns:
        (logprobs, candidates, accept, draft_selected_logprobs, accept_probs): [Q, V] f32, [Q] int32, [Q] bool,
        [Q] f32, [Q] f32. candidates is None without sampling, the last three without is_verify.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("fused_sample")
    check.tensor("logits", logits, torch.float32, ("Q", "V"), multiple=8)
    check.require(check.size("V") >= 32, "logits", f"must have at least 32 columns, not {check.size('V')}")
    sampling = sampling_inputs if isinstance(sampling_inputs, SamplingKernelInputs) else None
    transform = sampling.logits if sampling else sampling_inputs
    if not isinstance(transform, LogitsTransformInputs):
        raise TypeError("fused_sample: sampling_inputs must be LogitsTransformInputs or SamplingKernelInputs")
    _check_parameters(check, transform, sampling)
    reject = is_verify is not None
    check.require(not reject or sampling is not None, "is_verify", "needs SamplingKernelInputs: seeds and positions")
    drafts = (last_nextn_token_logprobs, last_next_n_token_ids)
    if reject:
        check.tensor("is_verify", is_verify, torch.bool, ("Q",), rows="contiguous")
        check.tensor("last_nextn_token_logprobs", drafts[0], torch.float32, ("P", "V"), multiple=8)
        check.require(check.size("P") > 0, "last_nextn_token_logprobs", "must have at least one row")
        check.tensor("last_next_n_token_ids", drafts[1], torch.int32, ("P",), rows="contiguous")
        check.optional("mtp_info_read_rows", mtp_info_read_rows, torch.int32, ("Q",), rows="contiguous")
    count, width = check.size("Q"), check.size("V")
    if logprobs_out is None:
        storage = torch.empty((count, -(-width // 8) * 8), dtype=torch.float32, device=logits.device)
        logprobs_out = storage[:, :width]
    check.tensor("logprobs_out", logprobs_out, torch.float32, ("Q", "V"), multiple=8)
    for name, value in (("logits", logits), ("logprobs_out", logprobs_out), ("last_nextn_token_logprobs", drafts[0])):
        check.require(value is None or value.data_ptr() % 16 == 0, name, "must start at a multiple of 16 bytes")

    def made(dtype: torch.dtype, wanted: bool) -> torch.Tensor | None:
        return torch.empty(count, dtype=dtype, device=logits.device) if wanted else None

    candidates = made(torch.int32, sampling is not None)
    accept, selected, chances = made(torch.bool, reject), made(torch.float32, reject), made(torch.float32, reject)
    factory("fused_sample_tl")(width, sampling is not None, reject)(
        logits,
        transform.temperatures,
        transform.top_ps,
        transform.top_ks,
        sampling.sample_positions if sampling else None,
        sampling.seq_seeds if sampling else None,
        is_verify,
        logprobs_out,
        candidates,
        last_nextn_token_logprobs if reject else logits,
        mtp_info_read_rows if reject else None,
        last_next_n_token_ids if reject else None,
        accept,
        selected,
        chances,
        0 if tag == "default" else DRAFT_SEED_OFFSET,
        torch.empty((count, 2), dtype=torch.float32, device=logits.device),
    )
    return logprobs_out, candidates, accept, selected, chances


def _check_parameters(
    check: Arguments, transform: LogitsTransformInputs, sampling: SamplingKernelInputs | None
) -> None:
    check.tensor("temperatures", transform.temperatures, torch.float32, ("Q",), rows="any")
    check.tensor("top_ps", transform.top_ps, torch.float32, ("Q",), rows="any")
    check.tensor("top_ks", transform.top_ks, torch.int32, ("Q",), rows="any")
    if sampling is not None:
        check.tensor("seq_seeds", sampling.seq_seeds, SEED_TYPES, ("Q",), rows="any")
        check.tensor("sample_positions", sampling.sample_positions, torch.int32, ("Q",), rows="any")
    if transform.temperatures.device.type == "cpu":
        check.require(bool(transform.temperatures.isfinite().all()), "temperatures", "must be finite numbers")
        check.require(not bool(transform.top_ps.isnan().any()), "top_ps", "must be numbers, not NaN")
