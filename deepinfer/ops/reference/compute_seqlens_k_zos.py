"""Reference of `compute_seqlens_k_zos_tl` (kernel_spec A.6)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def compute_seqlens_k_zos_tl(nextn: int) -> Kernel:
    """k += q; and += accepted[remap] - nextn where remap names a row of the batch before."""

    def run(seqlens_k: torch.Tensor, seqlens_q: torch.Tensor, remap: torch.Tensor, accepted: torch.Tensor) -> None:
        seqlens_k += seqlens_q
        known = (remap >= 0) & (remap < accepted.shape[0])
        seqlens_k[known] += accepted[remap[known].long()] - nextn

    return run
