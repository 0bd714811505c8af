"""The root mean square of rows: one routine for `norm_tl` and the fused transform (kernel_spec A.13 step 1)."""

from __future__ import annotations

import torch

CHUNK = 16


def sum_of_squares(v: torch.Tensor) -> torch.Tensor:
    """float32 [..., d], d a multiple of 16 -> [...], summed in a fixed order.

    Of every 16 consecutive channels, the squares of the even and of the odd ones are summed in ascending order, and
    the two sums added. Those sums, with zeros up to a power of two, are added pairwise from the widest distance
    down to 1.
    """
    squares = (v * v).reshape(*v.shape[:-1], v.shape[-1] // CHUNK, CHUNK // 2, 2)
    chain = squares[..., 0, :]
    for step in range(1, CHUNK // 2):
        chain = chain + squares[..., step, :]
    total = chain[..., 0] + chain[..., 1]
    missing = (1 << (total.shape[-1] - 1).bit_length()) - total.shape[-1]
    total = torch.nn.functional.pad(total, (0, missing))
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total[..., 0]


def reciprocal_root(v: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(v^2) + eps) of float32 [..., d] -> [...]: each operation rounded once, so equal on every device."""
    count = torch.full((), v.shape[-1], dtype=torch.float32, device=v.device)
    mean = sum_of_squares(v) / count + torch.full_like(count, eps)
    # PyTorch's square root of float32 on a CPU may be off by one bit; through float64 it is rounded right.
    return 1 / mean.double().sqrt().float()
