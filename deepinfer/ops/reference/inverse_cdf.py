"""The draw of a token from fixed-point masses: an inverse CDF over columns in the order of lanes (kernel_spec B.2)."""

from __future__ import annotations

import torch

from deepinfer.ops.reference import philox

ONE = 2**31
_LANES = 2048


def fixed_point(probabilities: torch.Tensor) -> torch.Tensor:
    """trunc(p * 2^31) as int64; negative values count as 0."""
    return (probabilities.clamp(min=0.0) * float(ONE)).to(torch.int64)


def lanes_of(width: int) -> int:
    """Lanes that the columns of a row are dealt to: a column's lane is its index modulo this."""
    return _LANES if width >= 8192 else max(1 << (width - 1).bit_length(), 1)


def below(totals: torch.Tensor, seeds: torch.Tensor, subsequences: torch.Tensor) -> torch.Tensor:
    """A number in [0, total) for each row (int64, 0 < total < 2^32): words are drawn until one is below the limit."""
    limits = (philox.MASK // totals) * totals
    drawn = philox.word(seeds, subsequences, 0)
    attempt = 0
    while bool((drawn >= limits).any()):
        attempt += 1
        drawn = torch.where(drawn >= limits, philox.word(seeds, subsequences, attempt), drawn)
    return drawn % totals


def draw(masses: torch.Tensor, seeds: torch.Tensor, subsequences: torch.Tensor) -> torch.Tensor:
    """Token of each row, int32; -1 where the row has no mass or 2^32 and more.

    Args:
        masses: [N, V] int64, not negative: see `fixed_point`.
        seeds: [N] uint64 or int64.
        subsequences: [N] int64.
    """
    count, width = masses.shape
    totals = masses.sum(1)
    possible = (totals > 0) & (totals <= philox.MASK)
    rho = below(torch.where(possible, totals, 1), seeds, subsequences)
    lanes = lanes_of(width)
    deep = -(-width // lanes)
    padded = torch.zeros((count, deep * lanes), dtype=torch.int64, device=masses.device)
    padded[:, :width] = masses
    ordered = padded.view(count, deep, lanes).transpose(1, 2).reshape(count, deep * lanes)
    place = (ordered.cumsum(1) <= rho[:, None]).sum(1)
    token = place // deep + (place % deep) * lanes
    return torch.where(possible, token, -1).int()
