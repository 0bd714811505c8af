"""`compute_seqlens_k_zos_tl` in Triton (kernel_spec A.6)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch

_BLOCK = 128


@triton.jit(do_not_specialize=["r", "rp"])
def _compute_seqlens_k_zos(seqlens_k, seqlens_q, remap, accepted, r, rp, NEXTN: tl.constexpr, BLOCK: tl.constexpr):
    sequence = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = sequence < r
    before = tl.load(remap + sequence, mask=live, other=-1)
    known = live & (before >= 0) & (before < rp)
    length = tl.load(seqlens_k + sequence, mask=live, other=0) + tl.load(seqlens_q + sequence, mask=live, other=0)
    length += tl.load(accepted + before, mask=known, other=NEXTN) - NEXTN
    tl.store(seqlens_k + sequence, length, mask=live)


@functools.cache
def compute_seqlens_k_zos_tl(nextn: int) -> Kernel:
    """k += q; and += accepted[remap] - nextn where remap names a row of the batch before."""

    def run(seqlens_k: torch.Tensor, seqlens_q: torch.Tensor, remap: torch.Tensor, accepted: torch.Tensor) -> None:
        r, rp = remap.shape[0], accepted.shape[0]
        launch(
            _compute_seqlens_k_zos,
            (cdiv(r, _BLOCK),),
            *(seqlens_k, seqlens_q, remap, accepted, r, rp),
            NEXTN=nextn,
            BLOCK=_BLOCK,
        )

    return run
