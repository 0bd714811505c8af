"""Reference of `random_sampling_tl` (kernel_spec A.2, B.2)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference import philox
from deepinfer.ops.reference.inverse_cdf import draw, fixed_point


@functools.cache
def random_sampling_tl(vocab_size: int, is_nextn_predict: bool) -> Kernel:
    """A token of each row of probabilities. is_nextn_predict: from the stream of draws after a rejection."""

    def run(probs: torch.Tensor, seq_seeds: torch.Tensor, sample_positions: torch.Tensor, out: torch.Tensor) -> None:
        usable = (probs < 2).all(1)
        masses = fixed_point(torch.where(usable[:, None], probs, 0.0))
        out.copy_(draw(masses, seq_seeds, philox.subsequence(sample_positions, int(is_nextn_predict))))

    return run
