"""Inputs of the probe's kernels, and the exact answers.

Answers are computed on the CPU without Triton, by plain Python integers and floats where torch's own arithmetic could
share a fault with the kernel (the e4m3 rounding, 64-bit sums), by torch otherwise. Inputs are chosen so that the answer
does not depend on the order of additions or on fused multiply-adds: every comparison is exact.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Example:
    """Arguments on the CPU by name (tensors and integers), and the answer for each output by name."""

    arguments: Mapping[str, torch.Tensor | int]
    expected: Mapping[str, torch.Tensor]


def _random(seed: int) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(seed)


def add_example() -> Example:
    """A length that no block divides, so that the mask is part of the check."""
    import torch

    count = 1000
    a = torch.randn(count, generator=_random(1))
    b = torch.randn(count, generator=_random(2))
    out = torch.full((count,), math.nan)
    return Example({"a_ptr": a, "b_ptr": b, "out_ptr": out, "count": count}, {"out_ptr": a + b})


def dot_example(dtype: str) -> Example:
    """Products of small integers, which sum up exactly in fp32. dtype: of the operands, by its name in torch."""
    import torch

    a = torch.randint(-8, 9, (64, 128), generator=_random(3))
    b = torch.randint(-8, 9, (128, 64), generator=_random(4))
    narrow: torch.dtype = getattr(torch, dtype)
    return Example(
        {"a_ptr": a.to(narrow), "b_ptr": b.to(narrow), "out_ptr": torch.full((64, 64), math.nan)},
        {"out_ptr": (a @ b).to(torch.float32)},  # int64 arithmetic; |sum| <= 8192
    )


def gather_rows_example() -> Example:
    """Rows of bf16, both ends and a row that repeats among them."""
    import torch

    source = torch.randn(32, 64, generator=_random(5)).to(torch.bfloat16)
    picked = torch.randint(0, 32, (16,), generator=_random(6), dtype=torch.int32)
    picked[0], picked[1], picked[2] = 31, 0, 31
    out = torch.zeros(16, 64, dtype=torch.bfloat16)
    expected = torch.stack([source[row] for row in picked.tolist()])
    return Example({"source_ptr": source, "picked_ptr": picked, "out_ptr": out}, {"out_ptr": expected})


def rope_example(distance: int) -> Example:
    """Pairs of neighbours (distance 1) or of halves, rotated."""
    import torch

    tokens, dim = 8, 64
    # Small integers times multiples of 1/8: exact with and without a fused multiply-add.
    x = torch.randint(-100, 101, (tokens, dim), generator=_random(7)).to(torch.float32)
    cos = torch.randint(-8, 9, (tokens, dim // 2), generator=_random(8)).to(torch.float32) / 8
    sin = torch.randint(-8, 9, (tokens, dim // 2), generator=_random(9)).to(torch.float32) / 8
    expected = torch.full_like(x, math.nan)
    for token in range(tokens):
        for pair in range(dim // 2):
            first = 2 * pair if distance == 1 else pair
            a, b = float(x[token, first]), float(x[token, first + distance])
            c, s = float(cos[token, pair]), float(sin[token, pair])
            expected[token, first] = a * c - b * s
            expected[token, first + distance] = b * c + a * s
    out = torch.full_like(x, math.nan)
    return Example({"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "out_ptr": out}, {"out_ptr": expected})


def e4m3_value(code: int) -> float:
    """The value of an e4m3 byte (4 exponent bits, bias 7, 3 mantissa bits, no infinities); NaN for 0x7f and 0xff."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


def e4m3_code(value: float) -> int:
    """The e4m3 byte nearest to `value`, a tie to the even byte, values past ±448 to ±448."""
    if math.isnan(value):
        raise ValueError("NaN has no nearest e4m3 value")
    magnitude = min(abs(value), 448.0)
    best = min(range(0x7F), key=lambda code: (abs(e4m3_value(code) - magnitude), code & 1))
    return best | (0x80 if math.copysign(1.0, value) < 0 else 0)


def _fp32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def scale_exponent(amax: float) -> int:
    """The biased fp32 exponent of the smallest power of two >= max(amax, 1e-4) * (1/448), in fp32 arithmetic."""
    # A product of two fp32 values is exact in a double, so that one rounding gives fp32's own product.
    ratio = _fp32(max(amax, _fp32(1e-4)) * _fp32(1.0 / 448.0))
    bits = struct.unpack("<I", struct.pack("<f", ratio))[0]
    return int((bits >> 23) + (bits & 0x7FFFFF != 0))


def cast_fp8_example() -> Example:
    """Blocks of all magnitudes with their scales, an empty one among them."""
    import torch

    blocks, group = 16, 128
    x = torch.randn(blocks, group, generator=_random(10)) * torch.logspace(-6, 6, blocks, base=10.0)[:, None]
    x[0] = 0.0  # an empty block takes the smallest scale
    x[1, 0] = 448.0  # the largest value that needs no scaling
    x[1, 1:] = torch.linspace(-448, 448, group - 1)
    return _cast_fp8_answer(x.to(torch.bfloat16))


def cast_fp8_unrounded_example() -> Example:
    """As `cast_fp8`, of values that e4m3 holds: nothing is rounded."""
    import torch

    blocks, group = 16, 128
    codes = torch.randint(0, 0x7F, (blocks, group), generator=_random(12))
    codes[:, 0] = 0x7E  # 448, so that the scale is the power of two that the block was multiplied with
    values = torch.tensor([e4m3_value(code) for code in range(0x7F)])[codes]
    return _cast_fp8_answer((values * torch.exp2(torch.arange(blocks) - 8.0)[:, None]).to(torch.bfloat16))


def _cast_fp8_answer(x: torch.Tensor) -> Example:
    import torch

    rows: list[list[float]] = x.to(torch.float64).tolist()
    exponents = [scale_exponent(max(abs(value) for value in row)) for row in rows]
    codes = [
        [e4m3_code(value * 2.0 ** (127 - exponent)) for value in row]
        for row, exponent in zip(rows, exponents, strict=True)
    ]
    back = [
        [e4m3_value(code) * 2.0 ** (exponent - 127) for code in row]
        for row, exponent in zip(codes, exponents, strict=True)
    ]
    return Example(
        {
            "x_ptr": x,
            "codes_ptr": torch.full(x.shape, 0x7F, dtype=torch.uint8),
            "exponents_ptr": torch.zeros(len(x), dtype=torch.uint8),
            "back_ptr": torch.full(x.shape, math.nan),
        },
        {
            "codes_ptr": torch.tensor(codes, dtype=torch.uint8),
            "exponents_ptr": torch.tensor(exponents, dtype=torch.uint8),
            "back_ptr": torch.tensor(back, dtype=torch.float32),
        },
    )


_FINITE = [e4m3_value(code) for code in range(0x7F)]


def cast_fp8_plain_example() -> Example:
    """Every value of e4m3, every tie and what is just beside it, and what is too small or too large."""
    middles = [(low + high) / 2 for low, high in itertools.pairwise(_FINITE)]  # every tie
    beside = [_fp32(middle * (1 + step)) for middle in middles for step in (-(2.0**-20), 2.0**-20)]
    return _cast_fp8_plain_answer([*_FINITE, *middles, *beside, 2.0**-30, 449.0, 1e6])


def cast_fp8_plain_finite_example() -> Example:
    """As `cast_fp8_plain`, of nothing but the values of e4m3."""
    return _cast_fp8_plain_answer(_FINITE)


def _cast_fp8_plain_answer(magnitudes: list[float]) -> Example:
    import torch

    values = [*magnitudes, *(-value for value in magnitudes)]
    values += [0.0] * (1024 - len(values))
    return Example(
        {"x_ptr": torch.tensor(values), "codes_ptr": torch.full((1024,), 0x7F, dtype=torch.uint8)},
        {"codes_ptr": torch.tensor([e4m3_code(value) for value in values], dtype=torch.uint8)},
    )


def cdf_example() -> Example:
    """Masses of 32 bits without a sign whose sums need 64."""
    import torch

    lanes, draws = 256, 64
    masses: list[int] = torch.randint(0, 2**32, (lanes,), generator=_random(11)).tolist()
    masses[0:4] = [2**32 - 1, 0, 2**31, 2**31 - 1]  # what signed 32-bit arithmetic gets wrong, and an empty lane
    reached = [sum(masses[: lane + 1]) for lane in range(lanes)]
    total = reached[-1]
    chosen = [0, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, total - 1]
    chosen += [reached[lane] for lane in range(2, 12)]  # exactly on a step: belongs to the next lane
    chosen += [reached[lane] - 1 for lane in range(2, 12)]
    chosen += [(total * part) // draws for part in range(draws - len(chosen))]
    picked = [next(lane for lane in range(lanes) if reached[lane] > draw) for draw in chosen]
    signed = [mass - 2**32 if mass >= 2**31 else mass for mass in masses]
    return Example(
        {
            "mass_ptr": torch.tensor(signed, dtype=torch.int32),
            "draws_ptr": torch.tensor(chosen, dtype=torch.int64),
            "picked_ptr": torch.full((draws,), -1, dtype=torch.int32),
            "total_ptr": torch.zeros(1, dtype=torch.int64),
        },
        {
            "picked_ptr": torch.tensor(picked, dtype=torch.int32),
            "total_ptr": torch.tensor([total], dtype=torch.int64),
        },
    )
