"""Angles of the rotary embedding (model_spec 3.0). The model was trained with these fp32 values, in this order."""

from __future__ import annotations

import math

import torch

from deepinfer.config.model import Rope


def frequencies(rope: Rope, *, compressed: bool) -> torch.Tensor:
    """Angles per position of the rotated pairs, fp32 in the order of operations that model_spec 3.0 states."""
    theta = rope.compress_theta if compressed else rope.theta
    steps = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    powers = torch.tensor(theta, dtype=torch.float32) ** steps
    plain = 1.0 / powers
    if not compressed or rope.yarn is None:
        return plain
    yarn = rope.yarn

    def correction(beta: float) -> float:
        return rope.dim * math.log(yarn.original_max_position / (beta * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(correction(yarn.beta_fast)), 0)
    high: float = min(math.ceil(correction(yarn.beta_slow)), rope.dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return 1.0 / (yarn.factor * powers) * ramp + plain * (1 - ramp)
