"""Narrow casts, group scales and dequantisation (kernel_spec 0 to 0.2), the reference.

What the specification leaves open: a NaN does not count towards its group's largest magnitude, and becomes NaN
(0x7f) in e4m3 and +6 in e2m1, which has no NaN. An infinity counts as the largest finite float32 and saturates.
"""

from __future__ import annotations

import torch

LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
MARGIN = {"e4m3": 1e-4, "e2m1": 6 * 2.0**-126}
E4M3_SMALLEST = 2.0**-9
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def fused_multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c of float32 with one rounding.

    The product is exact in float64. The sum is rounded to odd there: then rounding it to float32 gives what one
    rounding of the exact sum would.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    bits = total.view(torch.int64)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    inexact = (error != 0) & ~error.isnan() & (bits & 1 == 0)
    return torch.where(inexact, bits + step, bits).view(torch.float64).float()


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """float32 -> float8_e4m3fn: nearest, ties to even, saturating at 448; NaN -> 0x7f."""
    return torch.where(x.isnan(), torch.nan, x.clamp(-448.0, 448.0)).to(torch.float8_e4m3fn)


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """float32 [..., 2k] -> int8 [..., k], the even column in the low half.

    Nearest, ties to the even code, saturating at 6; a negative value that becomes zero keeps its sign; NaN -> +6.
    """
    size = x.abs()
    code = torch.zeros_like(x, dtype=torch.int32)
    for index, middle in enumerate(_MIDPOINTS):
        # The code below the middle is `index`: a tie goes up where that one is odd.
        code += size >= middle if index % 2 else size > middle
    code = torch.where(x.isnan(), 7, code + 8 * x.signbit().int())
    return (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8).view(torch.int8)


def decode_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """int8 or uint8 [..., k] -> float32 [..., 2k]."""
    table = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], device=packed.device)
    wide = packed.view(torch.uint8).long()
    return torch.stack((table[wide & 15], table[wide >> 4]), dim=-1).flatten(-2)


def ceil_log2(x: torch.Tensor) -> torch.Tensor:
    """The exact ceiling of log2 of positive, normal float32, as int32."""
    return (x.view(torch.int32) - 1 >> 23) - 126


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent in float32, for int32 exponents from -126 to 127."""
    return (exponent + 127 << 23).view(torch.float32)


def group_amax(x: torch.Tensor, group: int) -> torch.Tensor:
    """The largest magnitude of each `group` consecutive values, float32 [..., n / group]; NaN does not count."""
    size = x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group).abs()
    return torch.where(size.isnan(), 0.0, size).amax(-1)


def group_scale(
    amax: torch.Tensor, fmt: str, round_sf: bool, sf_format: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The scale of groups with these largest magnitudes: (what is stored, its value, what values are multiplied by).

    Args:
        fmt: "e4m3" or "e2m1".
        round_sf: whether the scale is a power of two.
        sf_format: stored as "ue8m0" (uint8: exponent + 127), "e4m3" (float8_e4m3fn) or "fp32".
    """
    largest = LARGEST[fmt]
    amax = amax.clamp(MARGIN[fmt], torch.finfo(torch.float32).max)
    if round_sf:
        exponent = ceil_log2(amax * (1 / largest))
        value = power_of_two(exponent)
        stored = (exponent + 127).to(torch.uint8) if sf_format == "ue8m0" else value
        return stored, value, power_of_two(-exponent)
    if sf_format == "e4m3":
        stored = encode_e4m3(amax.clamp(min=largest * E4M3_SMALLEST) * (1 / largest))
        return stored, stored.float(), 1 / stored.float()
    whole = torch.full_like(amax, largest)  # a number would become a product with a reciprocal
    return amax / whole, amax / whole, whole / amax


def quantize(
    x: torch.Tensor, fmt: str, group: int, round_sf: bool, sf_format: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 or float32 [..., n] -> (values, scales), a scale for each `group` consecutive columns.

    Quantising what was dequantised gives the same values again where scales are powers of two, and for e2m1 with
    e4m3 scales where those are no subnormals (2^-6 and above).

    values: float8_e4m3fn [..., n] or e2m1 as int8 [..., n / 2]. scales [..., n / group]: as `group_scale` stores them.
    """
    stored, _, multiplier = group_scale(group_amax(x, group), fmt, round_sf, sf_format)
    scaled = x.float() * multiplier.repeat_interleave(group, dim=-1)
    return (encode_e4m3(scaled) if fmt == "e4m3" else encode_e2m1(scaled)), stored


def dequantize(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What `quantize` gave -> float32 [..., n]. int8 values are e2m1; uint8 scales are ue8m0."""
    plain = decode_e2m1(values) if values.dtype == torch.int8 else values.float()
    scale = (scales.int() << 23).view(torch.float32) if scales.dtype == torch.uint8 else scales.float()
    return plain * scale.repeat_interleave(plain.shape[-1] // scale.shape[-1], dim=-1)
