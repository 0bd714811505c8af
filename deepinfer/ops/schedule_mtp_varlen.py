"""How many drafts of each sequence a step verifies (kernel_spec A.5, #36; model_spec 3.13)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def compute_seqlens_q_by_confidence_rates(
    total_q: int, remap: torch.Tensor, prev_confidence_rates: torch.Tensor, seqlens_q: torch.Tensor
) -> None:
    """One row a sequence, and the other total_q - R rows to the drafts with the largest products of confidences.

    A draft's product runs over its own confidence and those before it; ties go to the lower sequence, then to the
    earlier draft. A NaN product counts as 0.

    Args:
        total_q: rows of the step; more than R * (1 + nextn) gives every draft a row, fewer than R none.
        remap: [R] int32 index of the sequence in the batch before; negative (or beyond it) for a fresh one, whose
            products are 0.
        prev_confidence_rates: [Rp, nextn] float32.
        seqlens_q: [R] int32, written.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("compute_seqlens_q_by_confidence_rates")
    check.whole_number("total_q", total_q, at_least=0, at_most=2**31 - 1)
    check.tensor("remap", remap, torch.int32, ("R",), rows="contiguous")
    check.tensor("prev_confidence_rates", prev_confidence_rates, torch.float32, ("Rp", "nextn"), rows="contiguous")
    check.tensor("seqlens_q", seqlens_q, torch.int32, ("R",), rows="contiguous")
    r, nextn = check.size("R"), check.size("nextn")
    check.require(nextn > 0, "prev_confidence_rates", "must have at least one column")
    cum_rates = torch.empty((r, nextn), dtype=torch.float32, device=remap.device)
    factory("compute_seqlens_q_by_confidence_rates_tl")(nextn)(
        remap, prev_confidence_rates, cum_rates, seqlens_q, total_q
    )
