"""The PTX that decodes weights, which the interpreter cannot run, carried out here on every code."""

from __future__ import annotations

import re

import torch

from deepinfer.ops.tolerance import difference
from deepinfer.ops.triton import weight_codes
from tests.ops.narrow import E2M1, E4M3

WORD = 0xFFFFFFFF


def _run(text: str, given: torch.Tensor, outputs: int) -> list[torch.Tensor]:
    """What the text gives for each of int64 [n]: its outputs $0, $1 and so on; the input is the next one."""
    held = {f"${outputs}": given & WORD}
    for line in (one.strip().rstrip(";") for one in text.strip("{}").splitlines()):
        if not line or line.startswith(".reg"):
            continue
        name, rest = line.split(" ", 1)
        to, *of = (one.strip() for one in re.split(r",\s*(?![^{]*})", rest))
        values = [held[one] if one in held else torch.full_like(given, int(one, 0)) for one in of]
        made = _DONE[name](*values) & WORD
        if to.startswith("{"):
            halves = [one.strip() for one in to.strip("{}").split(",")]
            held.update(zip(halves, (made & 0xFFFF, made >> 16), strict=True))
        else:
            held[to] = made
    return [held[f"${index}"] for index in range(outputs)]


def _halves_of_e4m3(both: torch.Tensor) -> torch.Tensor:
    low, high = (one.to(torch.uint8).view(torch.float8_e4m3fn).half().view(torch.int16).long() for one in
                 (both & 255, both >> 8 & 255))  # fmt: skip
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


def _bfloat16_pair(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    first, second = (one.int().view(torch.float32).bfloat16().view(torch.int16).long() & 0xFFFF for one in (low, high))
    return first | second << 16


def _bytes_picked(a: torch.Tensor, b: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
    both = a | b << 32
    picked = [both >> 8 * ((choice >> 4 * place) & 7) & 255 for place in range(4)]
    return picked[0] | picked[1] << 8 | picked[2] << 16 | picked[3] << 24


def _and_or(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    assert set(table.tolist()) == {0xEA}
    return (a & b) | c


_DONE = {
    "mul.lo.u32": lambda a, b: a * b,
    "shr.u32": lambda a, by: a >> by,
    "shl.b32": lambda a, by: a << by,
    "and.b32": lambda a, b: a & b,
    "lop3.b32": _and_or,
    "prmt.b32": _bytes_picked,
    "mov.b32": lambda a: a,
    "cvt.rn.f16x2.e4m3x2": _halves_of_e4m3,
    "cvt.f32.f16": lambda a: a.to(torch.int16).view(torch.float16).float().view(torch.int32).long(),
    "cvt.rn.bf16x2.f32": _bfloat16_pair,
}


def _bfloat16(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int16).view(torch.bfloat16)


def test_four_e2m1_are_decoded_from_the_last_column_on() -> None:
    table = torch.tensor([*E2M1, *(-one for one in E2M1)], dtype=torch.float64)
    codes = torch.arange(1 << 16)
    for column, bits in zip((3, 2, 1, 0), _run(weight_codes._FOUR_E2M1.value, codes, 4), strict=True):
        expected = table[codes >> 4 * column & 15]
        found = _bfloat16(bits).double() * 2.0**126
        assert difference("values", expected, found) == ""


def test_four_e4m3_are_decoded_from_the_first_column_on() -> None:
    table = torch.tensor([*E4M3, torch.nan, *(-one for one in E4M3), torch.nan], dtype=torch.float64)
    byte = torch.arange(256)
    codes = byte | (byte * 7 % 256) << 8 | (byte * 31 % 256) << 16 | (255 - byte) << 24
    for column, bits in enumerate(_run(weight_codes._FOUR_E4M3.value, codes, 4)):
        expected = table[codes >> 8 * column & 255]
        found = _bfloat16(bits).double()
        assert difference("values", expected, found) == ""
        assert found.isnan().sum() == 2


def test_four_scales_are_powers_of_two() -> None:
    byte = torch.arange(1, 255)
    given = byte | (byte * 3 % 254 + 1) << 8 | (255 - byte) << 16 | byte << 24
    first, second = _run(weight_codes._FOUR_SCALES.value, given, 2)
    for place, bits in enumerate((first & 0xFFFF, first >> 16, second & 0xFFFF, second >> 16)):
        assert _bfloat16(bits).double().equal(2.0 ** ((given >> 8 * place & 255) - 127).double())
