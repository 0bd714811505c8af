"""`gather_input_ids_zos` (kernel_spec A.6)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.gather_input_ids_zos import gather_input_ids_zos
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@small_cases("gather_input_ids_zos")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    outcome = run(case.factory, call, "reference", "cpu")
    fresh, sampled, predict, remap, lengths, sums, expected = (one.value.tolist() for one in call.arguments)
    for i, before in enumerate(remap):
        base = sums[i - 1] if i else 0
        for j in range(lengths[i]):
            token = fresh[i][j]
            if 0 <= before < len(sampled):
                token = sampled[before] if j == 0 else predict[before][j - 1]
            if base + j < len(expected):
                expected[base + j] = token
    assert outcome.results["out_input_ids"].tolist() == expected


@small_cases("gather_input_ids_zos")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("gather_input_ids_zos")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def arguments() -> dict[str, object]:
    return {
        "fresh_tokens": ints([[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        "prev_sampled_token_ids": ints([10, 20]),
        "prev_predict_token_ids": ints([[11, 12], [21, 22]]),
        "remap": ints([1, -1, 0]),
        "seqlens_q": ints([2, 3, 1]),
        "cu_seqlens_q": ints([2, 5, 6]),
        "out_input_ids": torch.full((8,), -5, dtype=torch.int32),
        "max_seqlen_q": 3,
    }


def test_interface() -> None:
    given = arguments()
    gather_input_ids_zos(**given)  # type: ignore[arg-type]
    assert given["out_input_ids"].tolist() == [20, 21, 4, 5, 6, 10, -5, -5]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"max_seqlen_q": 0}, ValueError, "gather_input_ids_zos: max_seqlen_q must be at least 1, not 0"),
        ({"max_seqlen_q": 4}, ValueError, r"fresh_tokens must have the shape \[R, 4\]"),
        ({"prev_predict_token_ids": ints([[1, 2]])}, ValueError, "prev_predict_token_ids has the shape"),
        ({"out_input_ids": torch.zeros(8)}, TypeError, "out_input_ids must be int32, not float32"),
        ({"cu_seqlens_q": ints([0, 2, 5, 6])}, ValueError, "cu_seqlens_q has the shape"),
    ],
)
def test_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gather_input_ids_zos(**{**arguments(), **change})  # type: ignore[arg-type]
