"""The checkpoint's quantised formats as numbers (model_spec 2.2, 2.3). Exact: bf16 holds every value."""

from __future__ import annotations

import torch

from deepinfer.ops.reference.quantize import decode_e2m1


def exponents(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes (any 8-bit dtype) as the powers of two that they stand for, float64."""
    return torch.exp2(scale.view(torch.uint8).double() - 127)


def fp8_blocks(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """e4m3 [out, in] with one E8M0 scale per 32x32 block [ceil(out/32), ceil(in/32)], as float64."""
    spread = exponents(scale).repeat_interleave(32, 0).repeat_interleave(32, 1)
    return weight.double() * spread[: weight.shape[0], : weight.shape[1]]


def fp8_rows(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """e4m3 [..., columns] with one E8M0 scale per 32 columns [..., columns/32], as float64."""
    return rows.double() * exponents(scale).repeat_interleave(32, -1)


def fp4_rows(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """e2m1 [rows, columns/2], two values a byte, the lower nibble first, with an E8M0 scale per 32 columns: float64."""
    return decode_e2m1(packed).double() * exponents(scale).repeat_interleave(32, -1)
