"""`gather` (kernel_spec A.10)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.gather import gather
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("gather")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    outcome = run(case.factory, call, "reference", "cpu")
    x, index, _ = (one.value for one in call.arguments)
    for row, picked in enumerate(index.tolist()):
        expected = x[picked] if 0 <= picked < len(x) else torch.zeros_like(x[0])
        assert outcome.results["y"][row].equal(expected)


@small_cases("gather")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("gather")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_interface_takes_any_dtype_and_shape() -> None:
    table = torch.randn(5, 2, 3, dtype=torch.bfloat16)
    index = torch.tensor([4, -1, 0, 5])
    found = gather(table, index)
    assert found.shape == (4, 2, 3) and found[0].equal(table[4]) and found[2].equal(table[0])
    assert not found[1].any() and not found[3].any()
    kept = torch.full((4, 2, 3), 9.0, dtype=torch.bfloat16)
    assert gather(table, index, kept) is kept and kept.equal(found)
    assert gather(table, index[:0]).shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.zeros(3, 4), torch.zeros(2)), TypeError, "gather: index must be int32 or int64, not float32"),
        ((torch.zeros(3, 4), [1]), TypeError, "index must be a tensor, not list"),
        ((torch.zeros(4, 3).T, torch.zeros(2, dtype=torch.int32)), ValueError, "x must have contiguous rows"),
        ((torch.zeros(3, 4), torch.zeros(2, 1, dtype=torch.int32)), ValueError, r"index must have the shape \[m\]"),
        (
            (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int32), torch.zeros(3, 4)),
            ValueError,
            r"out has the shape \[3, 4\], where \[m, 4\] is needed and index has m = 2",
        ),
    ],
)
def test_refused(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gather(*arguments)  # type: ignore[arg-type]
