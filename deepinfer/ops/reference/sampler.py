"""References of `sampler` (kernel_spec A.3)."""

from __future__ import annotations

import functools
from typing import Any

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.finalize_verification import finalize_verification_tl

__all__ = [
    "expand_sampling_params_tl",
    "finalize_verification_tl",
    "get_accept_result_tl",
    "map_lookup_tl",
    "prepare_verification_metadata_tl",
    "remap_draft_topk_tl",
]

POSITION_STRIDE = 10000019
"""DRAFT_POS_HASH_MUL: how far the random positions of two rows of a request are apart (kernel_spec 0.1)."""
NEUTRAL = (1.0, 1.0, -1, 0, 0)
"""Temperature, top_p, top_k, position and seed of a row of no request: a plain draw, which nobody reads."""


@functools.cache
def prepare_verification_metadata_tl(num_steps: int) -> Kernel:
    """Request, step, and whether there is a draft to verify, of each query row; -1, 0, False for a row of none."""

    def run(
        ftp: torch.Tensor,
        seqlen_q: torch.Tensor,
        row_to_req: torch.Tensor,
        local_step: torch.Tensor,
        is_verify: torch.Tensor,
    ) -> None:
        rows = torch.arange(row_to_req.shape[0], dtype=torch.int32, device=ftp.device)
        requests = torch.arange(ftp.shape[0], dtype=torch.int32, device=ftp.device)
        inside = (rows[:, None] >= ftp) & (rows[:, None] < ftp + seqlen_q)
        owner = torch.where(inside, requests, -1)
        row_to_req.copy_(torch.nn.functional.pad(owner, (1, 0), value=-1).amax(1))
        owned = row_to_req >= 0
        local_step.copy_(torch.where(owned, rows - at(ftp, row_to_req, 0), 0))
        is_verify.copy_(owned & (local_step + 1 < at(seqlen_q, row_to_req, 0)))

    return run


def at(table: torch.Tensor, index: torch.Tensor, missing: Any) -> torch.Tensor:
    """table[index], `missing` where the index is outside of the table."""
    inside = (index >= 0) & (index < table.shape[0])
    found = torch.full(index.shape, missing, dtype=table.dtype, device=table.device)
    found[inside] = table[index[inside].long()]
    return found


@functools.cache
def expand_sampling_params_tl() -> Kernel:
    """Each row gets its request's parameters; its position is moved on by its step."""

    def run(*arguments: torch.Tensor) -> None:
        given, (row_to_req, local_step), outputs = arguments[:5], arguments[5:7], arguments[7:]
        for source, target, neutral in zip(given, outputs, NEUTRAL, strict=True):
            signed = source.view(torch.int64) if source.dtype == torch.uint64 else source
            target.view(signed.dtype).copy_(at(signed, row_to_req, neutral))
        owned = (row_to_req >= 0) & (row_to_req < given[0].shape[0])
        outputs[3].add_(torch.where(owned, local_step * POSITION_STRIDE, 0))

    return run


@functools.cache
def map_lookup_tl(force_topk: int, mode: str, value_dtype: torch.dtype) -> Kernel:
    """out = the row's value at the column `query`, or at the (last) column whose key is `query`; else -inf or -1."""
    missing = float("-inf") if value_dtype.is_floating_point else -1

    def run(key: torch.Tensor | None, value: torch.Tensor, query: torch.Tensor, out: torch.Tensor) -> None:
        column = query
        if key is not None:
            columns = torch.arange(force_topk, device=query.device)
            column = torch.where(key == query, columns, -1).amax(1, keepdim=True)
        inside = (column >= 0) & (column < force_topk)
        out.copy_(torch.where(inside, value.gather(1, torch.where(inside, column, 0).long()), missing))

    return run


@functools.cache
def remap_draft_topk_tl(force_topk: int, vocab_size: int) -> Kernel:
    """The draft's log-probabilities at the target's token ids; -inf for ids that the draft's top-k lacks."""

    def run(
        draft_topk_index: torch.Tensor,
        draft_topk_logprobs: torch.Tensor,
        draft_token_ids_pool: torch.Tensor,
        target_topk_index: torch.Tensor,
        read_rows: torch.Tensor,
        aligned_logprobs: torch.Tensor,
        draft_local_ids: torch.Tensor,
        identity_rows: torch.Tensor,
    ) -> None:
        def column(ids: torch.Tensor, known: torch.Tensor | bool) -> torch.Tensor:
            return torch.where((ids >= 0) & (ids < vocab_size) & known, ids, vocab_size).long()

        known = (read_rows >= 0) & (read_rows < draft_topk_index.shape[0])
        source = torch.where(known, read_rows, 0).long()
        of_vocabulary = draft_topk_logprobs.new_full((read_rows.shape[0], vocab_size + 1), float("-inf"))
        of_vocabulary.scatter_(1, column(draft_topk_index[source], known[:, None]), draft_topk_logprobs[source])
        of_vocabulary[:, vocab_size] = float("-inf")
        aligned_logprobs.copy_(of_vocabulary.gather(1, column(target_topk_index, True)))
        token = at(draft_token_ids_pool, read_rows, -1)[:, None]
        columns = torch.arange(force_topk, device=token.device)
        draft_local_ids.copy_(torch.where((target_topk_index == token) & (token >= 0), columns, -1).amax(1))
        identity_rows.copy_(torch.arange(read_rows.shape[0], device=token.device))

    return run


@functools.cache
def get_accept_result_tl(has_golden: bool) -> Kernel:
    """Which drafts hold, and which row ends a request: its first one that does not, or the one without a draft."""

    def run(
        raw_accept: torch.Tensor,
        golden: torch.Tensor,
        draft_token_ids_pool: torch.Tensor,
        read_rows: torch.Tensor,
        candidate_token_ids: torch.Tensor,
        is_verify: torch.Tensor,
        ftp: torch.Tensor,
        row_to_req: torch.Tensor,
        token_ids_out: torch.Tensor,
        accept_out: torch.Tensor,
        is_final_out: torch.Tensor,
    ) -> None:
        accepted = raw_accept
        token_ids_out.copy_(candidate_token_ids)
        if has_golden:
            given = golden != -1
            accepted = torch.where(given, golden == at(draft_token_ids_pool, read_rows, -1), accepted)
            token_ids_out.copy_(torch.where(given, golden, token_ids_out))
        holds = accepted & is_verify
        rows = torch.arange(holds.shape[0], dtype=torch.int32, device=holds.device)
        start = at(ftp, row_to_req, -1)
        failed = torch.nn.functional.pad((~holds).cumsum(0), (1, 0))[:-1]
        alive = (start >= 0) & (start <= rows) & (failed == at(failed, start, -1))
        accept_out.copy_(alive & holds)
        is_final_out.copy_(alive & ~holds)

    return run
