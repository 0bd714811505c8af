"""References of `confidence_head_fused_tl` and `dflash_input_store_tl` (kernel_spec A.8)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def confidence_head_fused_tl(n_embed: int, markov_rank: int, has_markov_emb: bool) -> Kernel:
    """out = sigmoid(clamp(([x0 | x1] . weight) / temp, -60, 60)), float32."""

    def run(x0: torch.Tensor, x1: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, temp: float) -> None:
        total = (x0.float() * weight[:n_embed].float()).sum(1)
        if has_markov_emb:
            assert x1 is not None
            total = total + (x1.float() * weight[n_embed:].float()).sum(1)
        out.copy_(1 / (1 + torch.exp(-(total / temp).clamp(-60, 60))))

    return run


@functools.cache
def dflash_input_store_tl(n_embed: int, hc_mult: int) -> Kernel:
    """out = bf16(sum over the streams in float32, first to last, * (1 / hc_mult)); one stream is copied."""

    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        if hc_mult == 1:
            out.copy_(x[:, 0])
            return
        total = x[:, 0].float()
        for stream in range(1, hc_mult):
            total = total + x[:, stream].float()
        out.copy_((total * (1 / hc_mult)).bfloat16())

    return run
