"""Normally distributed inputs of any size, made in little time."""

from __future__ import annotations

import torch

_PERIOD = 4_194_301
"""A prime, so that rows differ although the values repeat: a billion of them would take half a minute to draw."""


def noise(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of a normal distribution; they repeat after a few million."""
    count = torch.Size(shape).numel()
    drawn = torch.randn(min(count, _PERIOD), generator=generator).to(dtype)
    return drawn.repeat(-(-count // _PERIOD))[:count].view(shape) if count > _PERIOD else drawn.view(shape)
