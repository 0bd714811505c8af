"""Reference of `apply_token_bitmask_by_step_inplace_tl` (kernel_spec A.4)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def apply_token_bitmask_by_step_inplace_tl(vocab_size: int, has_ftp: bool) -> Kernel:
    """-inf for the tokens whose bit is 0, in row ftp[r] + step (or r) of each request r of `indices`."""

    def run(
        logits: torch.Tensor, bitmask: torch.Tensor, indices: torch.Tensor, ftp: torch.Tensor | None, step: int
    ) -> None:
        requests = indices.long()
        if has_ftp:
            assert ftp is not None
            known = (requests >= 0) & (requests < min(len(ftp), len(bitmask)))
            requests = requests[known]
            ends = torch.cat((ftp[1:].long(), torch.tensor([len(logits)], device=logits.device)))
            rows = ftp.long()[requests] + step
            there = (rows >= 0) & (rows < ends[requests].clamp(max=len(logits)))
        else:
            rows = requests
            there = (rows >= 0) & (rows < min(len(logits), len(bitmask)))
        rows, requests = rows[there], requests[there]
        tokens = torch.arange(vocab_size, device=logits.device)
        allowed = (bitmask[requests][:, tokens // 32] >> (tokens % 32)) & 1
        logits[rows, :vocab_size] = torch.where(allowed == 1, logits[rows, :vocab_size], -torch.inf)

    return run
