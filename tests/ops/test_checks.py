"""Checks of the interface functions' arguments: what is refused, by which error, and in which words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.ops.checks import Arguments


def _check() -> Arguments:
    return Arguments("kernel")


def test_what_is_as_said_passes_and_binds_its_sizes() -> None:
    check = _check()
    x = torch.zeros(3, 8)[:, :4]
    assert check.tensor("x", x, (torch.float32, torch.bfloat16), ("rows", 4)) is x
    check.tensor("y", torch.zeros(3, dtype=torch.int32), torch.int32, ("rows",))
    check.tensor("scalar", torch.zeros(()), torch.float32, ())
    assert check.optional("z", None, torch.int32, ("rows",)) is None
    assert check.size("rows") == 3


def test_empty_and_single_rows_have_no_strides_to_speak_of() -> None:
    check = _check()
    check.tensor("one", torch.zeros(9, 1)[:1].as_strided((1, 1), (7, 5)), torch.float32, (1, 1), multiple=8)
    check.tensor("none", torch.zeros(0, 4), torch.float32, ("n", 4), rows="contiguous", multiple=8)


@pytest.mark.parametrize(
    ("refused", "error", "text"),
    [
        (lambda c: c.tensor("x", [1], torch.int32, (1,)), TypeError, "kernel: x must be a tensor, not list"),
        (lambda c: c.tensor("x", None, torch.int32, (1,)), TypeError, "x must be a tensor, not NoneType"),
        (
            lambda c: c.tensor("x", torch.zeros(1), (torch.int32, torch.int64), (1,)),
            TypeError,
            "x must be int32 or int64, not float32",
        ),
        (lambda c: c.tensor("x", torch.zeros(2, 3), torch.float32, (2,)), ValueError, r"shape \[2\], not \[2, 3\]"),
        (lambda c: c.tensor("x", torch.zeros(2), torch.float32, (3,)), ValueError, r"shape \[3\], not \[2\]"),
        (lambda c: c.tensor("x", torch.zeros(2), torch.float32, (None, 2)), ValueError, r"shape \[\*, 2\], not \[2\]"),
        (
            lambda c: c.tensor("x", torch.zeros(4, 3).T, torch.float32, (3, 4), rows="contiguous"),
            ValueError,
            r"x must be contiguous; its strides are \(1, 3\)",
        ),
        (
            lambda c: c.tensor("x", torch.zeros(4, 3).T, torch.float32, (3, 4)),
            ValueError,
            "the last dimension of x must be contiguous",
        ),
        (
            lambda c: c.tensor("x", torch.zeros(3, 12), torch.float32, (3, 12), multiple=8),
            ValueError,
            "the strides of x must be multiples of 8",
        ),
        (lambda c: c.whole_number("n", True, at_least=0), TypeError, "n must be an int, not bool"),
        (lambda c: c.whole_number("n", 1.0, at_least=0), TypeError, "n must be an int, not float"),
        (lambda c: c.whole_number("n", -1, at_least=0), ValueError, "n must be at least 0, not -1"),
        (lambda c: c.whole_number("n", 9, at_least=0, at_most=8), ValueError, "at least 0 and at most 8, not 9"),
        (lambda c: c.one_of("n", 12, (8, 16)), ValueError, "n must be one of 8, 16, not 12"),
        (lambda c: c.require(False, "n", "is odd"), ValueError, "kernel: n is odd"),
        (
            lambda c: c.optional("x", torch.zeros(1), torch.int32, (1,)),
            TypeError,
            "x must be int32, not float32",
        ),
    ],
)
def test_refused(refused: Callable[[Arguments], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        refused(_check())


def test_sizes_of_one_letter_must_agree() -> None:
    check = _check()
    check.tensor("x", torch.zeros(3, 4), torch.float32, ("Q", "V"))
    with pytest.raises(ValueError, match=r"y has the shape \[2\], where \[Q\] is needed and x has Q = 3"):
        check.tensor("y", torch.zeros(2), torch.float32, ("Q",))


def test_all_must_be_on_one_device() -> None:
    check = _check()
    check.tensor("x", torch.zeros(1), torch.float32, (1,))
    with pytest.raises(ValueError, match="y is on meta, and x on cpu: all must be on one device"):
        check.tensor("y", torch.zeros(1, device="meta"), torch.float32, (1,))


def test_a_refusal_is_never_an_assertion() -> None:
    for wrong in ("text", 1, torch.zeros(2, 2), torch.zeros(1).double()):
        with pytest.raises((TypeError, ValueError)) as caught:
            _check().tensor("x", wrong, torch.float32, (1,))
        assert "kernel: x" in str(caught.value)
