"""Reference of `expand_swa_index_tl` (kernel_spec A.9)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def expand_swa_index_tl(width: int) -> Kernel:
    """output[:, col] = o1 + col for col < l1, o2 - l1 + col for col < l1 + l2, else -1; pivots: o1, l1, o2, l2."""

    def run(pivots: torch.Tensor, output: torch.Tensor) -> None:
        o1, l1, o2, l2 = pivots[:, :, None].unbind(1)
        l1, l2 = l1.clamp(0, width), l2.clamp(0, width)
        column = torch.arange(width, dtype=torch.int32, device=pivots.device)
        second = torch.where(column < l1 + l2, o2 - l1 + column, -1)
        output.copy_(torch.where(column < l1, o1 + column, second))

    return run
