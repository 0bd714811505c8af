"""Reference of `sum_smaller_probs_tl` (kernel_spec A.4)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def sum_smaller_probs_tl(vocab_size: int) -> Kernel:
    """Sum of the probabilities up to the token's own, in the ascending order of (log-probability, index)."""

    def run(logprobs: torch.Tensor, sample_results: torch.Tensor, output: torch.Tensor) -> None:
        tokens = sample_results.long()[:, None]
        inside = (tokens >= 0) & (tokens < vocab_size)
        tokens = torch.where(inside, tokens, 0)
        own = logprobs.gather(1, tokens)
        columns = torch.arange(vocab_size, device=logprobs.device)
        counted = (logprobs < own) | ((logprobs == own) & (columns <= tokens))
        output.copy_(torch.where(counted & inside, logprobs, -torch.inf).exp().sum(1))

    return run
