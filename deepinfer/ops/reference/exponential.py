"""exp in f32 that gives the same bits on every device: additions, multiplications and one floor, nothing fused.

A sampled token depends on the last bit of a probability, and every library's exp has last bits of its own. With this
one a token can be worked out on a CPU from the log-probabilities that a GPU wrote.
"""

from __future__ import annotations

import torch

LOG2_E = 1.4426950408889634
LN2_HIGH = 355 / 512  # few bits: its product with a whole number below 2^15 is exact
LN2_LOW = -2.1219444005469058e-4  # ln 2 - 355/512
LOWEST = -87.0  # below, the result would leave the normal numbers; it is 0
HIGHEST = 88.0
COEFFICIENTS = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2)


def exp(x: torch.Tensor) -> torch.Tensor:
    """e^x of f32 values, within 2 units in the last place; 0 below LOWEST and for NaN; limited at HIGHEST."""
    inside = x > LOWEST
    x = torch.where(inside, x, LOWEST)
    x = torch.where(x < HIGHEST, x, HIGHEST)
    n = torch.floor(x * LOG2_E + 0.5)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    value = torch.full_like(r, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        value = value * r + coefficient
    value = (value * r) * r + r + 1.0
    power = ((n.int() + 127) << 23).view(torch.float32)
    return torch.where(inside, value * power, 0.0)
