"""Reference of `select_topk` and `block_maxima` (model_spec 3.5, 3.6)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel

_SORTED = 2**25
"""Scores that are sorted at a time: what bounds the memory."""


@functools.cache
def select_topk(k: int) -> Kernel:
    """The columns of the k largest scores of each row, ascending; ties go to the lower column."""

    def run(scores: torch.Tensor, lengths: torch.Tensor, columns: torch.Tensor) -> None:
        width = scores.shape[1]
        column = torch.arange(width, device=scores.device)
        together = max(_SORTED // max(width, 1), 1)
        for part in range(0, len(scores), together):
            rows = slice(part, part + together)
            score = scores[rows].float()
            counts = (column < lengths[rows, None]) & ~score.isnan()
            ranked = score.masked_fill(~counts, -torch.inf).sort(dim=-1, descending=True, stable=True)
            chosen = ranked.indices[:, :k].masked_fill(ranked.values[:, :k] == -torch.inf, width).sort(-1).values
            columns[rows] = -1
            columns[rows, : chosen.shape[1]] = chosen.masked_fill(chosen == width, -1).int()

    return run


@functools.cache
def block_maxima(block_size: int) -> Kernel:
    """The largest logit of each block; plus infinity for the last one."""

    def run(logits: torch.Tensor, lengths: torch.Tensor, scores: torch.Tensor, blocks: torch.Tensor) -> None:
        width, count = logits.shape[1], scores.shape[1]
        counts = torch.arange(width, device=logits.device) < lengths[:, None]
        known = logits.masked_fill(~counts | logits.isnan(), -torch.inf)
        padded = torch.nn.functional.pad(known, (0, count * block_size - width), value=-torch.inf)
        blocks.copy_((lengths.clamp(0, width) + block_size - 1) // block_size)
        last = torch.arange(count, device=logits.device) == blocks[:, None] - 1
        scores.copy_(padded.reshape(len(logits), count, block_size).amax(-1).masked_fill(last, torch.inf))

    return run
