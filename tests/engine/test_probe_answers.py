"""The probe's exact answers, tested against torch's arithmetic and against the faults that they are there to find."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from deepinfer.probe import checks
from deepinfer.probe.answers import e4m3_code, e4m3_value, scale_exponent
from deepinfer.probe.checks import CHECKS, Case
from deepinfer.probe.work import check_targets, judge, ptx_header

CASES = {case.name: case for check in CHECKS for case in check.cases}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_examples_match_their_signatures_and_repeat(case: Case) -> None:
    example, again = case.example(), case.example()
    assert list(example.arguments) == list(case.signature)
    assert set(example.expected) <= set(example.arguments)
    assert judge(example.expected, again.expected) == ""
    untouched = {name: value for name, value in example.arguments.items() if isinstance(value, torch.Tensor)}
    assert judge(example.expected, untouched) != "", "a kernel that writes nothing would pass"


def test_every_e4m3_byte_is_its_own_nearest() -> None:
    for code in range(256):
        if code & 0x7F != 0x7F:
            assert e4m3_code(e4m3_value(code)) == code
    assert math.isnan(e4m3_value(0x7F))
    with pytest.raises(ValueError, match="NaN"):
        e4m3_code(math.nan)


@given(st.floats(width=32, allow_nan=False))
@example(2.0**60)
@example(-math.inf)
def test_e4m3_rounds_as_torch_does(value: float) -> None:
    there = torch.tensor(value).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).item()
    assert e4m3_code(value) == there


@given(st.floats(min_value=0, max_value=2.0**100, width=32))
def test_the_scale_is_the_smallest_power_of_two_that_fits(amax: float) -> None:
    scale = 2.0 ** (scale_exponent(amax) - 127)
    clamped = torch.tensor(amax).clamp_min(1e-4)
    ratio = float(clamped * torch.tensor(1.0 / 448.0))  # torch's fp32 product
    assert ratio <= scale < 2 * ratio


def test_the_cast_example_covers_ties_subnormals_and_both_ends() -> None:
    codes = set(CASES["cast_fp8_plain"].example().expected["codes_ptr"].tolist())
    assert codes == set(range(256)) - {0x7F, 0xFF}


def test_signed_or_32_bit_sums_would_not_pass_the_cdf_example() -> None:
    example = CASES["pick_by_cdf"].example()
    mass, draws = example.arguments["mass_ptr"], example.arguments["draws_ptr"]
    assert isinstance(mass, torch.Tensor)
    assert isinstance(draws, torch.Tensor)
    right = example.expected["picked_ptr"]
    signed = torch.cumsum(mass.to(torch.int64), 0)  # the sign bit taken for a sign
    wrapped = torch.cumsum(mass.to(torch.int64) & 0xFFFFFFFF, 0) & 0xFFFFFFFF
    for reached in (signed, wrapped):
        picked = (reached[None, :] <= draws[:, None]).sum(1).to(torch.int32)
        assert judge({"picked_ptr": right}, {"picked_ptr": picked}) != ""


def test_the_two_rope_pairings_have_different_answers() -> None:
    neighbours, halves = (CASES[f"rope[DISTANCE={distance}]"].example() for distance in (1, 32))
    assert judge(neighbours.expected, halves.expected) != ""


def test_judge_names_the_first_wrong_value() -> None:
    right = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    wrong = right.clone()
    wrong[1, 0], wrong[1, 2] = math.nan, 9
    assert judge({"out_ptr": right}, {"out_ptr": right.clone()}) == ""
    assert judge({"out_ptr": right}, {"out_ptr": wrong}) == (
        "out: 2 of 6 values are wrong, first at [1, 0]: nan, expected 3.0"
    )


def test_ptx_header() -> None:
    text = "//\n// made by LLVM\n//\n\n.version 8.7\n.target sm_90a\n.address_size 64\n"
    assert ptx_header(text) == ("8.7", "sm_90a")
    assert ptx_header("") == ("", "")


def test_targets_need_the_ptx_of_every_kernel() -> None:
    good, plain = ".version 8.7\n.target sm_90a\n", ".version 8.7\n.target sm_90\n"
    assert check_targets({"a": good, "b": good}, ["a", "b"]).ok
    missing = check_targets({"a": good}, ["a", "b"])
    assert not missing.ok
    assert missing.reason == "no PTX of b"
    other = check_targets({"a": good, "b": plain}, ["a", "b"])
    assert not other.ok
    assert other.reason == "not sm_90a: b: sm_90"
    assert not check_targets({"a": ""}, ["a"]).ok


def test_seven_checks_in_order() -> None:
    assert CHECKS[-1].name == checks.PTX_TARGET
    assert all(check.cases for check in CHECKS[:-1])
