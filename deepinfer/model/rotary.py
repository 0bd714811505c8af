"""Tables of the rotary embedding (model_spec 3.0)."""

from __future__ import annotations

import torch

from deepinfer.config import Rope
from deepinfer.config.rope import frequencies

_ROWS = 1 << 16


def table(rope: Rope, length: int, device: torch.device | str, *, compressed: bool) -> torch.Tensor:
    """Cosines and then sines of every position: float32 [length, dim].

    compressed: of the layers that have a compressed cache. Computed on the host, so that every device has the same
    bits: the model was trained with these values.
    """
    own = frequencies(rope, compressed=compressed)
    found = torch.empty((length, rope.dim), dtype=torch.float32, device=device)
    for begin in range(0, length, _ROWS):
        angles = torch.arange(begin, min(begin + _ROWS, length), dtype=torch.float32)[:, None] * own
        found[begin : begin + _ROWS] = torch.cat((angles.cos(), angles.sin()), -1).to(device)
    return found
