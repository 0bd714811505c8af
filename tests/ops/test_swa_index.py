"""`expand_swa_index` (kernel_spec A.9)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.swa_index import expand_swa_index
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def _wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _expected(pivots: list[int], width: int) -> list[int]:
    o1, l1, o2, l2 = pivots
    first = [_wrapped(o1 + step) for step in range(min(max(l1, 0), width))]
    second = [_wrapped(o2 + step) for step in range(min(max(l2, 0), width))]
    return (first + second + [-1] * width)[:width]


@small_cases("swa_index")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    pivots, output = (one.value for one in call.arguments)
    results = run(case.factory, call, "reference", "cpu").results
    assert results["output"].tolist() == [_expected(row, output.shape[1]) for row in pivots.tolist()]


@small_cases("swa_index")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("swa_index")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_published_row_and_own_output() -> None:
    pivots = torch.tensor([[3, 2, 100, 3]], dtype=torch.int32)
    with using("reference"):
        assert expand_swa_index(pivots, 6).tolist() == [[3, 4, 100, 101, 102, -1]]
        kept = torch.zeros((1, 6), dtype=torch.int32)
        assert expand_swa_index(pivots, 6, kept) is kept and kept.tolist() == [[3, 4, 100, 101, 102, -1]]
        assert expand_swa_index(pivots[:0], 6).shape == (0, 6)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.zeros(2, 4), 6), TypeError, "pivots must be int32, not float32"),
        ((torch.zeros(2, 3, dtype=torch.int32), 6), ValueError, r"pivots must have the shape \[n, 4\]"),
        ((torch.zeros(2, 8, dtype=torch.int32)[:, ::2], 6), ValueError, "pivots must be contiguous"),
        ((torch.zeros(2, 4, dtype=torch.int32), 0), ValueError, "width must be at least 1, not 0"),
        ((torch.zeros(2, 4, dtype=torch.int32), 2.0), TypeError, "width must be an int, not float"),
        ((torch.zeros(2, 4, dtype=torch.int32), 6, torch.zeros(2, 7, dtype=torch.int32)), ValueError, "out must have"),
        ((torch.zeros(2, 4, dtype=torch.int32), 6, torch.zeros(3, 6, dtype=torch.int32)), ValueError, "n = 2"),
        (
            (torch.zeros(2, 4, dtype=torch.int32), 6, torch.zeros(6, 2, dtype=torch.int32).T),
            ValueError,
            "the last dimension of out must be contiguous",
        ),
        (
            (torch.zeros(2, 4, dtype=torch.int32), 6, torch.zeros(2, 6, dtype=torch.int32, device="meta")),
            ValueError,
            "out is on meta, and pivots on cpu",
        ),
    ],
)
def test_refused(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        expand_swa_index(*arguments)  # type: ignore[arg-type]
