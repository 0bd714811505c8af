"""`sum_smaller_probs` (kernel_spec A.4)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.sum_smaller_probs import sum_smaller_probs
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def by_definition(row: list[float], token: int) -> float:
    if not 0 <= token < len(row):
        return 0.0
    own = row[token]
    return sum(math.exp(lp) for j, lp in enumerate(row) if lp < own or (lp == own and j <= token))


@small_cases("sum_smaller_probs")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    logprobs, tokens = (one.value.tolist() for one in call.arguments[:2])
    found = run(case.factory, call, "reference", "cpu").results["output"].tolist()
    assert found == pytest.approx([by_definition(*one) for one in zip(logprobs, tokens, strict=True)], abs=1e-5)


@small_cases("sum_smaller_probs")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("sum_smaller_probs")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40).filter(any), st.integers(-2, 45))
@settings(max_examples=60)
def test_ties_count_up_to_the_token(weights: list[int], token: int) -> None:
    row = torch.zeros(1, 48)[:, : len(weights)].copy_((torch.tensor([weights]) / sum(weights)).log())
    below = [w for j, w in enumerate(weights) if (w, j) <= (weights[token], token)] if 0 <= token < len(weights) else []
    found = sum_smaller_probs(row, torch.tensor([token], dtype=torch.int32))
    assert float(found) == pytest.approx(sum(below) / sum(weights), abs=1e-6)


def test_likeliest_token_has_everything_below_it() -> None:
    row = torch.log_softmax(torch.randn(3, 4032, generator=torch.Generator().manual_seed(1)), 1)
    assert sum_smaller_probs(row, row.argmax(1).int()).tolist() == pytest.approx([1.0] * 3, abs=1e-5)


@pytest.mark.parametrize(
    ("logprobs", "tokens", "error", "text"),
    [
        (torch.zeros(2, 8).half(), torch.zeros(2).int(), TypeError, "sum_smaller_probs: logprobs must be float32"),
        (torch.zeros(2, 9), torch.zeros(2).int(), ValueError, "the strides of logprobs must be multiples of 8"),
        (torch.zeros(8, 2).T, torch.zeros(2).int(), ValueError, "the last dimension of logprobs must be contiguous"),
        (torch.zeros(2, 8), torch.zeros(2), TypeError, "sample_results must be int32, not float32"),
        (torch.zeros(2, 8), torch.zeros(3).int(), ValueError, r"logprobs has N = 2"),
        (torch.zeros(2, 8)[:, :0], torch.zeros(2).int(), ValueError, "logprobs must have at least one column"),
    ],
)
def test_refused(logprobs: torch.Tensor, tokens: torch.Tensor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        sum_smaller_probs(logprobs, tokens)
