"""`kv_index_cat` (kernel_spec A.9)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.dispatch import factory
from deepinfer.ops.execution import run
from deepinfer.ops.kv_index_cat import kv_index_cat
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("kv_index_cat")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    left, right, _, _, swa, total = (one.value for one in call.arguments)
    results = run(case.factory, call, "reference", "cpu").results
    assert results["left"].equal(left)
    expected = [[x if x == -1 else (x + swa + total + 2**31) % 2**32 - 2**31 for x in row] for row in right.tolist()]
    assert results["right"].tolist() == expected


@small_cases("kv_index_cat")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("kv_index_cat")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_interface() -> None:
    left = torch.tensor([[0, 1, -1, -1]], dtype=torch.int32)
    right = torch.tensor([[4, -1, 0]], dtype=torch.int32)
    with using("reference"):
        out = kv_index_cat(left, right, 100, 20)
    assert out.tolist() == [[0, 1, -1, -1, 124, -1, 120]] and out.stride() == (8, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.zeros(2, 4), torch.zeros(2, 4), 0, 0), TypeError, "kv_index must be int32, not float32"),
        ((_left := torch.zeros(2, 4, dtype=torch.int32), torch.zeros(3, 4, dtype=torch.int32), 0, 0), ValueError, "Q"),
        ((_left, torch.zeros(2, 4, dtype=torch.int64), 0, 0), TypeError, "kv_ca_index must be int32, not int64"),
        ((_left, torch.zeros(2, 8, dtype=torch.int32)[:, :4], 0, 0), ValueError, "kv_ca_index must be contiguous"),
        ((torch.zeros(2, 6, dtype=torch.int32), _left, 0, 0), ValueError, "a multiple of 4 columns, not 6"),
        ((_left, _left, -1, 0), ValueError, "total_k_swa must be at least 0"),
        ((_left, _left, 0, 2**31), ValueError, "total_k must be at least 0 and at most 2147483647"),
        ((_left, _left, 0, True), TypeError, "total_k must be an int, not bool"),
    ],
)
def test_refused(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kv_index_cat(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_other_dtypes_are_refused(backend: str) -> None:
    with using(backend), pytest.raises(ValueError, match="dtype must be 'int32', not 'int64'"):
        factory("kv_index_cat_tl")("int64", 4, 4, 8)
