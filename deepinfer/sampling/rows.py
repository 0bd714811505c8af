"""Rows of logits as the kernels take them: 8 floats or a multiple apart, from a multiple of 16 bytes."""

from __future__ import annotations

import torch


def aligned(logits: torch.Tensor) -> torch.Tensor:
    """[n, V] f32 as it is, where it is so already, else a copy."""
    strides = logits.stride(1) == 1 and (len(logits) < 2 or logits.stride(0) % 8 == 0)
    return logits if strides and logits.data_ptr() % 16 == 0 else aligned_copy(logits)


def aligned_copy(logits: torch.Tensor) -> torch.Tensor:
    """A copy of [n, V] f32 that may be changed."""
    rows, width = logits.shape
    storage = torch.empty((rows, -(-width // 8) * 8), dtype=torch.float32, device=logits.device)
    storage[:, :width] = logits
    return storage[:, :width]
