"""Which experts a row goes to, and with which weights (model_spec 3.9)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

MOST_EXPERTS = 4096
MOST_CHOSEN = 64


def gate_topk(
    logits: torch.Tensor,
    bias: torch.Tensor,
    bias_image: torch.Tensor | None,
    is_image: torch.Tensor | None,
    topk: int,
    scaling: float,
    valid: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `topk` experts of each row, best first, and their weights.

    The score of an expert is s = sqrt(softplus(logit)); experts are ranked by s + bias, a tie goes to the lower id,
    and a NaN ranks as minus infinity. A weight is s / (sum of the chosen s + 1e-20) * scaling, without the bias. All
    in float32. A row's result does not depend on the other rows.

    Args:
        logits: [n, E] float32, contiguous; E at most 4096.
        bias: [E] float32, contiguous.
        bias_image: [E] float32, contiguous: what replaces `bias` in rows of images; goes with is_image.
        is_image: [n] bool, contiguous: which rows those are; None for none.
        topk: 1 to min(E, 64).
        valid: [n] bool, contiguous: the rows that count; None for all.

    Returns:
        (ids [n, topk] int32, weights [n, topk] float32); -1 and 0 in rows that do not count.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("gate_topk")
    check.tensor("logits", logits, torch.float32, ("n", "E"), rows="contiguous")
    check.tensor("bias", bias, torch.float32, ("E",), rows="contiguous")
    check.optional("bias_image", bias_image, torch.float32, ("E",), rows="contiguous")
    check.optional("is_image", is_image, torch.bool, ("n",), rows="contiguous")
    check.optional("valid", valid, torch.bool, ("n",), rows="contiguous")
    check.require((bias_image is None) == (is_image is None), "bias_image", "goes with is_image: give both or neither")
    n, experts = check.size("n"), check.size("E")
    check.require(1 <= experts <= MOST_EXPERTS, "logits", f"must have 1 to {MOST_EXPERTS} experts, not {experts}")
    check.whole_number("topk", topk, at_least=1, at_most=min(experts, MOST_CHOSEN))
    ids = torch.empty((n, topk), dtype=torch.int32, device=logits.device)
    weights = torch.empty((n, topk), dtype=torch.float32, device=logits.device)
    factory("gate_topk")(experts, topk, float(scaling))(logits, bias, bias_image, is_image, valid, ids, weights)
    return ids, weights
