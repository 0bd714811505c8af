"""How two results are compared."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.ops.tolerance import EXACT, Tolerance, as_bits, difference

INF, NAN = math.inf, math.nan


def _says(expected: list[float], got: list[float], tolerance: Tolerance = EXACT) -> str:
    return difference("y", torch.tensor(expected), torch.tensor(got), tolerance)


def test_the_message_holds_the_largest_error_the_share_and_the_first_wrong_place() -> None:
    expected = torch.zeros(4, 5)
    got = expected.clone()
    got[2, 3], got[3, 0] = 0.5, -2.0
    text = difference("y", expected, got, Tolerance(0.1))
    assert text == "y: largest error 2.000e+00, 2 of 20 values wrong (10.00%), first at [2, 3]: 0.5, expected 0.0"


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "same"),
    [
        (1.0, 1.0, EXACT, True),
        (0.0, -0.0, EXACT, False),
        (0.0, -0.0, Tolerance(1e-9), True),
        (NAN, NAN, EXACT, True),
        (NAN, 1.0, Tolerance(INF), False),
        (1.0, NAN, Tolerance(1.0), False),
        (INF, INF, Tolerance(1.0), True),
        (INF, -INF, Tolerance(1.0, 1.0), False),
        (INF, 3e38, Tolerance(1.0, 1.0), False),
        (1.0, 1.5, Tolerance(0.5), True),
        (1.0, 1.5001, Tolerance(0.5), False),
        (100.0, 101.0, Tolerance(relative=0.01), True),
        (-100.0, -102.0, Tolerance(relative=0.01), False),
    ],
)
def test_single_values(expected: float, got: float, tolerance: Tolerance, same: bool) -> None:
    assert (_says([expected], [got], tolerance) == "") is same


def test_a_share_may_be_wrong() -> None:
    assert _says([0.0] * 100, [1.0] * 2 + [0.0] * 98, Tolerance(0.5, ratio=0.02)) == ""
    assert "3 of 100" in _says([0.0] * 100, [1.0] * 3 + [0.0] * 97, Tolerance(0.5, ratio=0.02))


def test_a_nan_among_errors_is_not_hidden() -> None:
    assert "largest error nan" in _says([1.0, 2.0], [NAN, 3.0], Tolerance(0.1))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16, torch.float64])
def test_narrow_types_are_compared_by_their_bits(dtype: torch.dtype) -> None:
    expected = torch.tensor([1.0, 2.0]).to(dtype)
    got = torch.tensor([1.0, 4.0]).to(dtype)
    assert difference("y", expected, expected.clone()) == ""
    assert "first at [1]: 4.0, expected 2.0" in difference("y", expected, got)


@pytest.mark.parametrize("dtype", [torch.uint64, torch.int64, torch.uint8, torch.bool])
def test_integers_are_exact_whatever_the_tolerance(dtype: torch.dtype) -> None:
    expected, got = torch.tensor([1, 0]).to(dtype), torch.tensor([1, 1]).to(dtype)
    assert "1 of 2 values wrong" in difference("y", expected, got, Tolerance(10.0, 1.0))
    assert difference("y", expected, expected.clone()) == ""


def test_other_shapes_and_types_are_wrong() -> None:
    assert difference("y", torch.zeros(2), torch.zeros(3)) == "y: float32 [3], expected float32 [2]"
    assert difference("y", torch.zeros(2), torch.zeros(2).int()) == "y: int32 [2], expected float32 [2]"


def test_nothing_to_compare_and_scalars() -> None:
    assert difference("y", torch.zeros(0, 4), torch.zeros(0, 4)) == ""
    assert "first at []: 2.0, expected 1.0" in difference("y", torch.tensor(1.0), torch.tensor(2.0))


def test_bits_of_a_strided_tensor() -> None:
    x = torch.arange(6, dtype=torch.float32).view(2, 3).T
    assert as_bits(x).view(torch.float32).equal(x.contiguous())
