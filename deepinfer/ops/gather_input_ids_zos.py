"""Input tokens of a step that is prepared before the host knows those of the step before (kernel_spec A.6)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def gather_input_ids_zos(
    fresh_tokens: torch.Tensor,
    prev_sampled_token_ids: torch.Tensor,
    prev_predict_token_ids: torch.Tensor,
    remap: torch.Tensor,
    seqlens_q: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    out_input_ids: torch.Tensor,
    *,
    max_seqlen_q: int,
) -> None:
    """Row j of sequence i: the token sampled before (j = 0) or draft j-1, or fresh_tokens[i, j] of a fresh sequence.

    Args:
        fresh_tokens: [R, max_seqlen_q] int32.
        prev_sampled_token_ids: [Rp] int32.
        prev_predict_token_ids: [Rp, max_seqlen_q - 1] int32; without drafts its width is 0.
        remap: [R] int32 index of the sequence in the batch before; negative (or beyond it) for a fresh one.
        seqlens_q: [R] int32, each at most max_seqlen_q.
        cu_seqlens_q: [R] int32 inclusive sums of seqlens_q.
        out_input_ids: [Q] int32; rows of no sequence stay as they are.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("gather_input_ids_zos")
    width = check.whole_number("max_seqlen_q", max_seqlen_q, at_least=1)
    check.tensor("fresh_tokens", fresh_tokens, torch.int32, ("R", width), rows="contiguous")
    check.tensor("prev_sampled_token_ids", prev_sampled_token_ids, torch.int32, ("Rp",), rows="contiguous")
    check.tensor("prev_predict_token_ids", prev_predict_token_ids, torch.int32, ("Rp", width - 1), rows="contiguous")
    check.tensor("remap", remap, torch.int32, ("R",), rows="contiguous")
    check.tensor("seqlens_q", seqlens_q, torch.int32, ("R",), rows="contiguous")
    check.tensor("cu_seqlens_q", cu_seqlens_q, torch.int32, ("R",), rows="contiguous")
    check.tensor("out_input_ids", out_input_ids, torch.int32, ("Q",), rows="contiguous")
    factory("gather_input_ids_zos_tl")(width)(
        *(fresh_tokens, prev_sampled_token_ids, prev_predict_token_ids, remap, seqlens_q, cu_seqlens_q, out_input_ids)
    )
