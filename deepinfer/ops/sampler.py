"""Sampling and verification of one decode step around the sampler's kernel (kernel_spec A.3, B.1).

A request has 1 + (drafts) consecutive query rows; `ftp` is its first one. Row j of a request verifies draft j; the
last row has no draft to verify. Rows of no request (padding) have row_to_req -1.
"""

from __future__ import annotations

from typing import Literal

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.finalize_verification import FinalizedVerification, finalize_verification
from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs
from deepinfer.ops.random_sampling import SEED_TYPES

__all__ = [
    "FinalizedVerification",
    "expand_sampling_params",
    "finalize_verification",
    "get_accept_result",
    "map_lookup",
    "prepare_verification_metadata",
    "remap_draft_topk",
]

MAX_TOPK = 16384


def prepare_verification_metadata(
    ftp: torch.Tensor, seqlen_q: torch.Tensor, total_q: int, num_steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each of `total_q` query rows is (#30).

    Args:
        ftp, seqlen_q: [R] int32 first row and number of rows of each request; requests do not overlap.
        total_q: Q, at least the rows of all requests: those beyond a request are rows of none.
        num_steps: rows of the longest request.

    Returns:
        row_to_req [Q] int32 (-1 for a row of none), local_step [Q] int32 (0 there), is_verify [Q] bool: whether the
        row has a draft to verify, which every row of a request but its last one has.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("prepare_verification_metadata")
    check.tensor("ftp", ftp, torch.int32, ("R",), rows="contiguous")
    check.tensor("seqlen_q", seqlen_q, torch.int32, ("R",), rows="contiguous")
    check.whole_number("total_q", total_q, at_least=0)
    check.whole_number("num_steps", num_steps, at_least=1)
    row_to_req, local_step = (torch.empty(total_q, dtype=torch.int32, device=ftp.device) for _ in range(2))
    is_verify = torch.empty(total_q, dtype=torch.bool, device=ftp.device)
    factory("prepare_verification_metadata_tl")(num_steps)(ftp, seqlen_q, row_to_req, local_step, is_verify)
    return row_to_req, local_step, is_verify


def expand_sampling_params(
    params: SamplingKernelInputs, row_to_req: torch.Tensor, local_step: torch.Tensor
) -> SamplingKernelInputs:
    """Parameters by query row from those by request (#31); the position of step t is moved on by t * 10000019.

    Args:
        params: of R requests.
        row_to_req, local_step: [Q] int32; a row of no request gets temperature 1, top_p 1, top_k -1, position 0 and
            seed 0.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("expand_sampling_params")
    given = [
        check.tensor("temperatures", params.logits.temperatures, torch.float32, ("R",), rows="contiguous"),
        check.tensor("top_ps", params.logits.top_ps, torch.float32, ("R",), rows="contiguous"),
        check.tensor("top_ks", params.logits.top_ks, torch.int32, ("R",), rows="contiguous"),
        check.tensor("sample_positions", params.sample_positions, torch.int32, ("R",), rows="contiguous"),
        check.tensor("seq_seeds", params.seq_seeds, SEED_TYPES, ("R",), rows="contiguous"),
    ]
    check.tensor("row_to_req", row_to_req, torch.int32, ("Q",), rows="contiguous")
    check.tensor("local_step", local_step, torch.int32, ("Q",), rows="contiguous")
    expanded = [one.new_empty(row_to_req.shape[0]) for one in given]
    factory("expand_sampling_params_tl")()(*given, row_to_req, local_step, *expanded)
    temperatures, top_ps, top_ks, positions, seeds = expanded
    return SamplingKernelInputs(LogitsTransformInputs(temperatures, top_ps, top_ks), seeds, positions)


def map_lookup(
    key: torch.Tensor | None,
    value: torch.Tensor,
    query: torch.Tensor,
    mode: Literal["by_key", "by_index"] = "by_key",
) -> torch.Tensor:
    """One value of each row, by its column or by its key (#32).

    Args:
        key: [Q, W] int32 strided rows, unique within a row; None for "by_index".
        value: [Q, W] strided rows: float32 or, by index, int32.
        query: [Q, 1] int32.

    Returns:
        [Q, 1] of value's dtype; -inf (or -1 of int32) where the column is outside or no key equals the query.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("map_lookup")
    check.one_of("mode", mode, ("by_key", "by_index"))
    check.require((key is None) == (mode == "by_index"), "key", f"must {'not ' * (mode != 'by_key')}be given {mode}")
    dtypes = (torch.float32, torch.int32) if key is None else (torch.float32,)
    check.tensor("value", value, dtypes, ("Q", "W"))
    check.optional("key", key, torch.int32, ("Q", "W"))
    check.tensor("query", query, torch.int32, ("Q", 1))
    check.require(value.shape[1] > 0, "value", "must have at least one column")
    out = torch.empty((query.shape[0], 1), dtype=value.dtype, device=value.device)
    factory("map_lookup_tl")(value.shape[1], mode, value.dtype)(key, value, query, out)
    return out


def remap_draft_topk(
    draft_topk_index: torch.Tensor,
    draft_topk_logprobs: torch.Tensor,
    draft_token_ids_pool: torch.Tensor,
    target_topk_index: torch.Tensor,
    read_rows: torch.Tensor,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The draft's side of a verification in the space of the target's W best tokens (#33).

    Args:
        draft_topk_index: [P, W] int32 contiguous, unique ids a row, W at most 16384; ids outside of the vocabulary
            count as absent.
        draft_topk_logprobs: [P, W] float32 contiguous.
        draft_token_ids_pool: [P] int32; negative for no draft.
        target_topk_index: [Q, W] int32 strided rows, unique ids a row.
        read_rows: [Q] int32 pool row of each query row; outside of the pool there is no draft.
        vocab_size: above every id.

    Returns:
        aligned log-probabilities [Q, W] float32 (-inf where the draft's row lacks the id), the draft token's column
        in the target's row [Q] int32 (-1 if absent, which forces a rejection), and 0, 1, ... Q-1 as int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("remap_draft_topk")
    check.tensor("draft_topk_index", draft_topk_index, torch.int32, ("P", "W"), rows="contiguous")
    check.tensor("draft_topk_logprobs", draft_topk_logprobs, torch.float32, ("P", "W"), rows="contiguous")
    check.tensor("draft_token_ids_pool", draft_token_ids_pool, torch.int32, ("P",), rows="contiguous")
    check.tensor("target_topk_index", target_topk_index, torch.int32, ("Q", "W"))
    check.tensor("read_rows", read_rows, torch.int32, ("Q",), rows="contiguous")
    width, q = check.size("W"), check.size("Q")
    check.require(1 <= width <= MAX_TOPK, "target_topk_index", f"must have 1 to {MAX_TOPK} columns, not {width}")
    check.require(check.size("P") > 0, "draft_topk_index", "must have at least one row")
    check.whole_number("vocab_size", vocab_size, at_least=width, at_most=2**31 - 1)
    aligned = torch.empty((q, width), dtype=torch.float32, device=read_rows.device)
    local_ids, identity = (torch.empty(q, dtype=torch.int32, device=read_rows.device) for _ in range(2))
    factory("remap_draft_topk_tl")(width, vocab_size)(
        *(draft_topk_index, draft_topk_logprobs, draft_token_ids_pool, target_topk_index, read_rows),
        *(aligned, local_ids, identity),
    )
    return aligned, local_ids, identity


def get_accept_result(
    raw_accept: torch.Tensor,
    golden: torch.Tensor | None,
    draft_token_ids_pool: torch.Tensor,
    read_rows: torch.Tensor,
    candidate_token_ids: torch.Tensor,
    is_verify: torch.Tensor,
    ftp: torch.Tensor,
    row_to_req: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which drafts are accepted: those before the first one of their request that is not (#34).

    Args:
        raw_accept: [Q] bool the sampler's verdict of each row by itself.
        golden: [Q] int32 tokens that replace the sampled ones (-1: none): a draft holds if it is that token.
        draft_token_ids_pool: [P] int32; read_rows: [Q] int32 pool row of each row's draft.
        candidate_token_ids: [Q] int32; is_verify: [Q] bool; ftp: [R] int32; row_to_req: [Q] int32.

    Returns:
        token ids [Q] int32; accepted [Q] bool; final [Q] bool: the one row of each request whose token comes after
        the accepted drafts. Rows of no request are neither accepted nor final.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("get_accept_result")
    check.tensor("raw_accept", raw_accept, torch.bool, ("Q",), rows="contiguous")
    check.optional("golden", golden, torch.int32, ("Q",), rows="contiguous")
    check.tensor("draft_token_ids_pool", draft_token_ids_pool, torch.int32, ("P",), rows="contiguous")
    check.tensor("read_rows", read_rows, torch.int32, ("Q",), rows="contiguous")
    check.tensor("candidate_token_ids", candidate_token_ids, torch.int32, ("Q",), rows="contiguous")
    check.tensor("is_verify", is_verify, torch.bool, ("Q",), rows="contiguous")
    check.tensor("ftp", ftp, torch.int32, ("R",), rows="contiguous")
    check.tensor("row_to_req", row_to_req, torch.int32, ("Q",), rows="contiguous")
    tokens = torch.empty_like(candidate_token_ids)
    accepted, final = torch.empty_like(raw_accept), torch.empty_like(raw_accept)
    factory("get_accept_result_tl")(golden is not None)(
        *(raw_accept, candidate_token_ids if golden is None else golden, draft_token_ids_pool, read_rows),
        *(candidate_token_ids, is_verify, ftp, row_to_req, tokens, accepted, final),
    )
    return tokens, accepted, final
