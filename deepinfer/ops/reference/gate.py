"""Reference of `gate_topk` (model_spec 3.9)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def gate_topk(experts: int, topk: int, scaling: float) -> Kernel:
    """The best `topk` of `experts` by sqrt(softplus(logit)) + bias, and their weights times `scaling`."""

    def run(
        logits: torch.Tensor,
        bias: torch.Tensor,
        bias_image: torch.Tensor | None,
        is_image: torch.Tensor | None,
        valid: torch.Tensor | None,
        ids: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        # In float64 and rounded: PyTorch's float32 logarithm is another function in a tensor's last few elements, and
        # a row would depend on how many rows there are.
        scores = torch.sqrt(torch.nn.functional.softplus(logits.double())).float()
        added = bias if is_image is None or bias_image is None else torch.where(is_image[:, None], bias_image, bias)
        ranked = scores + added
        ranked = torch.where(ranked.isnan(), -torch.inf, ranked)
        chosen = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :topk]
        picked = scores.gather(-1, chosen).double()
        ids.copy_(chosen)
        weights.copy_(picked / (picked.sum(-1, keepdim=True) + 1e-20) * scaling)
        if valid is not None:
            ids[~valid], weights[~valid] = -1, 0

    return run
