"""Context lengths of a step that is prepared before the tokens of the step before are known (kernel_spec A.6)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def compute_seqlens_k_zos(
    seqlens_k: torch.Tensor,
    seqlens_q: torch.Tensor,
    remap: torch.Tensor,
    prev_num_accepted_tokens: torch.Tensor,
    *,
    nextn: int,
) -> None:
    """seqlens_k += seqlens_q, and += accepted - nextn for a sequence that was in the batch before.

    Args:
        seqlens_k: [R] int32 cached tokens, as if all `nextn` drafts of the step before had been accepted; updated.
        seqlens_q: [R] int32 rows of this step.
        remap: [R] int32 index of the sequence in the batch before; negative (or beyond it) for a fresh one.
        prev_num_accepted_tokens: [Rp] int32.
        nextn: drafts a sequence had in the step before.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("compute_seqlens_k_zos")
    check.tensor("seqlens_k", seqlens_k, torch.int32, ("R",), rows="contiguous")
    check.tensor("seqlens_q", seqlens_q, torch.int32, ("R",), rows="contiguous")
    check.tensor("remap", remap, torch.int32, ("R",), rows="contiguous")
    check.tensor("prev_num_accepted_tokens", prev_num_accepted_tokens, torch.int32, ("Rp",), rows="contiguous")
    check.whole_number("nextn", nextn, at_least=0)
    factory("compute_seqlens_k_zos_tl")(nextn)(seqlens_k, seqlens_q, remap, prev_num_accepted_tokens)
