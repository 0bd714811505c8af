"""Narrow casts, scales and dequantisation: what the families that quantise share."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.reference import quantize as q
from tests.ops.quantize_interpreted import every_float_class

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nearest(value: float, table: list[float]) -> int:
    """The index of the nearest of a table of magnitudes in order; a tie goes to the even index; too large saturates."""
    size = Fraction(abs(value)) if math.isfinite(value) else Fraction(table[-1])
    return min(range(len(table)), key=lambda index: (abs(Fraction(table[index]) - size), index % 2))


def test_e4m3_is_the_nearest_of_all_its_values() -> None:
    table = [float(value) for value in torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()]
    middles = [(low + high) / 2 for low, high in itertools.pairwise(table)]
    tried = torch.tensor([*table, *middles, 449.0, 464.0, 480.0, 1e30, torch.inf, 1e-30])
    tried = torch.cat((tried, tried.nextafter(torch.tensor(0.0)), tried.nextafter(torch.tensor(torch.inf))))
    codes = q.encode_e4m3(tried).view(torch.uint8).tolist()
    assert codes == [nearest(value, table) for value in tried.tolist()]
    assert q.encode_e4m3(-tried).view(torch.uint8).tolist() == [code | 0x80 for code in codes]
    not_numbers = torch.tensor([0x7FC00000, -0x400000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert q.encode_e4m3(not_numbers).view(torch.uint8).tolist() == [0x7F] * 3


def test_e4m3_agrees_with_pytorch_wherever_that_does_not_overflow() -> None:
    x = every_float_class()
    x = x[x.abs() <= 448]
    assert q.encode_e4m3(x).view(torch.uint8).equal(x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_e2m1_is_the_nearest_of_all_its_values() -> None:
    tried = torch.tensor([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 1e30, torch.inf])
    tried = torch.cat((tried, tried.nextafter(torch.tensor(0.0)), tried.nextafter(torch.tensor(torch.inf))))
    packed = q.encode_e2m1(tried).view(torch.uint8)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten().tolist()
    assert codes == [nearest(value, list(E2M1)) for value in tried.tolist()]
    negative = q.encode_e2m1(-tried).view(torch.uint8)
    assert negative.equal(packed | 0x88)
    assert q.encode_e2m1(torch.tensor([torch.nan, -0.0])).view(torch.uint8).tolist() == [0x87]


def test_packed_bytes_of_the_specification() -> None:
    x = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -6, 0.25, 0.75, 2.5, 5, 1.25, -0.1])
    packed = q.encode_e2m1(x).view(torch.uint8)
    assert packed.tolist() == [0x10, 0x32, 0x54, 0x76, 0xF9, 0x20, 0x64, 0x82]
    assert q.decode_e2m1(packed).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -6, 0, 1, 2, 4, 1, -0.0]


@pytest.mark.parametrize(
    ("fmt", "amax", "byte"),
    [("e4m3", 0, 105), ("e4m3", 1, 119), ("e4m3", 6, 121), ("e4m3", 448, 127), ("e4m3", 450, 128),
     ("e2m1", 0, 1), ("e2m1", 1, 125), ("e2m1", 6, 127), ("e2m1", 6.03125, 128)],
)  # fmt: skip
def test_power_of_two_scales_of_the_specification(fmt: str, amax: float, byte: int) -> None:
    stored, value, multiplier = q.group_scale(torch.tensor([float(amax)]), fmt, True, "ue8m0")
    assert stored.tolist() == [byte] and value.item() == 2.0 ** (byte - 127) and value * multiplier == 1


@pytest.mark.parametrize(("amax", "byte"), [(0, 0x01), (1, 0x23), (6, 0x38), (3000, 0x7E)])
def test_e4m3_scales_of_the_specification(amax: float, byte: int) -> None:
    stored, value, multiplier = q.group_scale(torch.tensor([float(amax)]), "e2m1", False, "e4m3")
    assert stored.view(torch.uint8).tolist() == [byte] and multiplier.equal(1 / value)


def test_a_group_of_the_specification() -> None:
    x = torch.zeros(32, dtype=torch.bfloat16)
    x[:4] = torch.tensor([1, -2, 3, 0.1])
    values, scales = q.quantize(x, "e4m3", 32, True, "ue8m0")
    assert scales.tolist() == [120] and values.view(torch.uint8).tolist() == [0x70, 0xF8, 0x7C, 0x55] + [0] * 28


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_exponents_are_the_exact_ceiling_for_every_bfloat16(fmt: str) -> None:
    amax = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16).float()
    _, value, _ = q.group_scale(amax, fmt, True, "ue8m0")
    ratio = torch.maximum(amax.double(), torch.tensor(q.MARGIN[fmt], dtype=torch.float64)) / q.LARGEST[fmt]
    assert (value >= ratio).all() and (value / 2 < ratio).all()


def test_unrounded_float_scales() -> None:
    x = torch.tensor([0.0, 3.0, -7.0, 1.0]).repeat(8)
    values, scales = q.quantize(x, "e4m3", 32, False, "fp32")
    assert scales.equal(torch.tensor([7.0]) / 448) and values.float()[2] == -448
    assert values.float()[1] == 192


def test_infinities_and_nan_leave_the_rest_of_their_group() -> None:
    x = torch.full((64,), 2.0)
    x[0], x[1], x[33] = torch.nan, 1.0, torch.inf
    values, scales = q.quantize(x, "e4m3", 32, True, "ue8m0")
    assert values[0].float().isnan() and q.dequantize(values, scales)[1:32].equal(x[1:32])
    assert values[33].float() == 448 and scales[1] == 247
    packed, _ = q.quantize(x, "e2m1", 32, True, "ue8m0")
    assert q.decode_e2m1(packed)[0] == 6


def test_multiply_add_rounds_once() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b, c = (torch.randn(3000, generator=generator) for _ in range(3))
    c[::3] = -(a * b)[::3]
    c[1::3] *= 2.0**-30
    c[2::3] *= 2.0**20
    for row in zip(a, b, c, q.fused_multiply_add(a, b, c), strict=True):
        exact = Fraction(row[0].item()) * Fraction(row[1].item()) + Fraction(row[2].item())
        got = row[3]
        for other in (got.nextafter(torch.tensor(torch.inf)), got.nextafter(torch.tensor(-torch.inf))):
            assert abs(Fraction(got.item()) - exact) <= abs(Fraction(other.item()) - exact)


FORMATS = [
    ("e4m3", 32, True, "ue8m0"),
    ("e4m3", 128, True, "fp32"),
    ("e2m1", 32, True, "ue8m0"),
    ("e2m1", 16, False, "e4m3"),
]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form[0]}-{form[3]}")
@settings(max_examples=60)
@given(data=st.data())
def test_quantising_again_changes_no_value(form: tuple[str, int, bool, str], data: st.DataObject) -> None:
    fmt, group, round_sf, sf_format = form
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    magnitude = 2.0 ** data.draw(st.integers(-30, 30))
    x = (torch.randn(4, 4 * group, generator=generator) * magnitude).bfloat16()
    x[torch.rand(x.shape, generator=generator) < 0.2] = 0
    values, scales = q.quantize(x, fmt, group, round_sf, sf_format)
    once = q.dequantize(values, scales)
    assert once.bfloat16().float().equal(once), "the values are exact in bfloat16"
    twice = q.dequantize(*q.quantize(once.bfloat16(), fmt, group, round_sf, sf_format))
    # A scale that is subnormal in e4m3 may be rounded up so far that the largest code of its group becomes 4.
    firm = (scales.float() >= 2**-6).repeat_interleave(group, -1) if sf_format == "e4m3" else torch.ones_like(x).bool()
    assert twice[firm].equal(once[firm])
    assert once.signbit().equal(x.signbit())


def test_casts_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ops.quantize_interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
