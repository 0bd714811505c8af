"""Reference of `compute_seqlens_q_by_confidence_rates_tl` (kernel_spec A.5)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def compute_seqlens_q_by_confidence_rates_tl(nextn: int) -> Kernel:
    """seqlens_q = 1 + how many of the sequence's drafts are among the total_q - R largest cumulative products."""

    def run(
        remap: torch.Tensor, rates: torch.Tensor, cum_rates: torch.Tensor, seqlens_q: torch.Tensor, total_q: int
    ) -> None:
        known = (remap >= 0) & (remap < rates.shape[0])
        cum_rates.zero_()
        product = torch.ones_like(remap[known], dtype=torch.float32)
        for step in range(nextn):
            product = product * rates[remap[known].long(), step]
            cum_rates[known, step] = product.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        keys = cum_rates.flatten() + 0.0  # -0.0 becomes 0.0, which it ties with
        order = torch.sort(keys, descending=True, stable=True).indices
        chosen = order[: max(total_q - remap.shape[0], 0)] // nextn
        seqlens_q.copy_(1 + torch.bincount(chosen, minlength=remap.shape[0]))

    return run
