"""`fused_sample` (kernel_spec A.1, B.1 to B.4)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs, fused_sample
from deepinfer.ops.random_sampling import random_sampling
from deepinfer.ops.reference.exponential import exp
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

INF, NAN = math.inf, math.nan


@small_cases("fused_sample")
def test_reference_is_judged_right(case: Case) -> None:
    """What the judge asks of any backend holds for the reference; rows sum to 1, and the inputs stay as they are."""
    call = case.call()
    outcome = run(case.factory, call, "reference", "cpu")
    assert call.judge is not None and call.judge(outcome.results, outcome.results) == ""
    sums = outcome.results["logprobs"].double().exp().sum(1)
    assert ((sums - 1).abs() < 1e-5).logical_or(sums.isnan()).all()
    assert all(before.equal(after) for before, after in zip(outcome.before, outcome.rest, strict=True))


@small_cases("fused_sample")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("fused_sample")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def logs(*probabilities: float, width: int = 32) -> torch.Tensor:
    row = torch.zeros(1, width)
    row[0, : len(probabilities)] = torch.tensor(probabilities)
    return row.log()


def transform(count: int = 1, *, t: float = 1.0, p: float = 1.0, k: int = -1) -> LogitsTransformInputs:
    return LogitsTransformInputs(
        torch.full((count,), t), torch.full((count,), p), torch.full((count,), k, dtype=torch.int32)
    )


def inputs(seeds: list[int], positions: list[int], **limits: Any) -> SamplingKernelInputs:
    keys = torch.tensor(seeds, dtype=torch.uint64)
    return SamplingKernelInputs(transform(len(seeds), **limits), keys, torch.tensor(positions, dtype=torch.int32))


def kept(row: torch.Tensor, **limits: Any) -> dict[int, float]:
    """Token -> log-probability of a single row's kept set."""
    values = fused_sample(row, transform(**limits))[0][0]
    return {int(one): round(float(values[one]), 4) for one in (values > -INF).nonzero()[:, 0]}


def test_conformance_vectors_of_the_filter() -> None:
    """kernel_spec's vectors 5 to 7."""
    row, flat = logs(0.5, 0.25, 0.15, 0.1), logs(0.25, 0.25, 0.25, 0.25)
    assert kept(row, p=0.7) == {0: -0.4055, 1: -1.0986}
    assert kept(row, p=2.2e-16) == {0: 0.0}
    assert kept(row, k=3) == {0: -0.5878, 1: -1.2809, 2: -1.7918}
    assert list(kept(row, p=0.95, k=2)) == [0, 1]
    assert kept(flat, p=0.6) == {0: -1.0986, 1: -1.0986, 2: -1.0986}
    assert kept(flat, k=2) == {0: -0.6931, 1: -0.6931}
    assert list(kept(flat, p=0.6, k=2)) == [0, 1]
    assert kept(row, t=0.5) == {0: -0.3221, 1: -1.7084, 2: -2.73, 3: -3.541}


@pytest.mark.parametrize(("top_k", "count"), [(-5, 40), (-1, 40), (0, 40), (1, 1), (39, 39), (40, 40), (41, 40)])
def test_top_k_is_off_where_it_is_no_count(top_k: int, count: int) -> None:
    row = torch.randn(1, 40, generator=torch.Generator().manual_seed(2))
    assert len(kept(row, k=top_k)) == count


@pytest.mark.parametrize(("top_p", "count"), [(-1.0, 1), (0.0, 1), (1.0, 40), (1.5, 40), (INF, 40)])
def test_top_p_at_its_ends(top_p: float, count: int) -> None:
    row = torch.randn(1, 40, generator=torch.Generator().manual_seed(2))
    assert len(kept(row, p=top_p)) == count


@pytest.mark.parametrize("temperature", [-1.0, 0.0, 1e-6, 1e-5])
def test_lowest_temperature_is_greedy(temperature: float) -> None:
    row = torch.randn(1, 40, generator=torch.Generator().manual_seed(2))
    found = fused_sample(row, inputs([11], [4], t=temperature))
    assert found[1] is not None and int(found[1]) == int(row.argmax())
    assert float(found[0].max()) == 0.0
    assert found[0].equal(fused_sample(row, transform(t=1e-5))[0])


@given(
    weights=st.lists(st.integers(0, 8), min_size=32, max_size=48).filter(any),
    step=st.integers(0, 400),
    top_k=st.integers(-2, 50),
    active=st.booleans(),
)
@settings(max_examples=150)
def test_filter_against_a_sorted_walk(weights: list[int], step: int, top_k: int, active: bool) -> None:
    """Whole-number weights, and a top_p halfway between two of their sums: no rounding decides."""
    total, width = sum(weights), len(weights)
    limit = (step % total) + 0.5 if active else total + 1.0
    row = torch.zeros(1, -(-width // 8) * 8)[:, :width].copy_(torch.tensor([weights]).log())
    values = fused_sample(row, transform(p=limit / total, k=top_k))[0][0]
    walked: list[int] = []
    for token in sorted(range(width), key=lambda one: (-weights[one], one)):
        reached = sum(weights[one] for one in walked)
        if reached > limit or (0 < top_k < width and len(walked) >= top_k):
            break
        walked.append(token)
    expected = {token for token in walked if weights[token]}
    assert {int(one) for one in (values > -INF).nonzero()[:, 0]} == expected
    mass = sum(weights[token] for token in expected)
    for token in expected:
        assert abs(float(values[token]) - math.log(weights[token] / mass)) < 1e-5


@pytest.mark.parametrize("top_k", [1, 5, 12, 24])
def test_zeros_of_either_sign_are_ties(top_k: int) -> None:
    row = torch.tensor([[0.0, -0.0] * 20])
    row[0, 33] = -1.0
    assert list(kept(row, k=top_k)) == list(range(top_k))


def test_masked_vocabularies() -> None:
    """A width that no tile divides: only token 0 is left; a whole tile is masked."""
    row = torch.full((1, 8304), -INF)[:, :8301]
    row[0, 0] = -3.0
    found = fused_sample(row, inputs([5], [1], p=0.9, k=10))
    assert found[1] is not None and found[1].tolist() == [0] and kept(row, p=0.9) == {0: 0.0}
    row[0, :100] = 1.0
    assert len(kept(row)) == 100


def test_wrong_rows_leave_their_neighbours_alone() -> None:
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
    how = inputs([1, 2, 3, 4, 5, 6], [9] * 6, p=0.9)
    right = fused_sample(rows, how)
    spoiled = rows.clone()
    spoiled[1, 7], spoiled[3, 0], spoiled[4] = NAN, INF, -INF
    found = fused_sample(spoiled, how)
    assert found[1] is not None and right[1] is not None
    for row in range(6):
        if row in (1, 3, 4):
            assert int(found[1][row]) == -1 and found[0][row].isnan().all()
        else:
            assert found[1][row].equal(right[1][row]) and found[0][row].equal(right[0][row])


def test_fresh_rows_are_what_random_sampling_draws() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(200, 1024, generator=generator) * 3
    how = inputs(list(range(200)), list(range(1000, 1200)), p=0.95, k=60)
    values, tokens = fused_sample(rows, how)[:2]
    assert tokens is not None
    assert tokens.equal(random_sampling(exp(values), how.seq_seeds, how.sample_positions))
    drafts = fused_sample(rows, how, tag="mtp")[1]
    seeds = how.seq_seeds.view(torch.int64) + 1000000007
    assert drafts is not None and not drafts.equal(tokens)
    assert drafts.equal(random_sampling(exp(values), seeds, how.sample_positions))


def test_results_go_where_they_are_asked_for() -> None:
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(9))
    out = torch.full((3, 64), 5.0)
    found = fused_sample(rows, transform(3, p=0.9), logprobs_out=out[:, 16:56])
    assert found[0].data_ptr() == out[:, 16:].data_ptr() and found[1:] == (None, None, None, None)
    assert (out[:, :16] == 5).all() and (out[:, 56:] == 5).all()
    assert fused_sample(torch.zeros(0, 40), inputs([], []))[1].shape == (0,)  # type: ignore[union-attr]


GOOD = {"logits": torch.zeros(2, 40), "sampling_inputs": inputs([1, 2], [3, 4])}
POOL = {
    "is_verify": torch.ones(2, dtype=torch.bool),
    "last_nextn_token_logprobs": torch.zeros(5, 40),
    "last_next_n_token_ids": torch.zeros(5, dtype=torch.int32),
}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"logits": torch.zeros(2, 40).double()}, TypeError, "fused_sample: logits must be float32, not float64"),
        ({"logits": torch.zeros(2, 24)}, ValueError, "logits must have at least 32 columns, not 24"),
        ({"logits": torch.zeros(2, 41)}, ValueError, "the strides of logits must be multiples of 8"),
        ({"logits": torch.zeros(2, 48)[:, 1:41]}, ValueError, "logits must start at a multiple of 16 bytes"),
        ({"logits": torch.zeros(3, 40)}, ValueError, "temperatures has the shape"),
        ({"sampling_inputs": (1.0, 0.9, 5)}, TypeError, "sampling_inputs must be LogitsTransformInputs or"),
        ({"sampling_inputs": transform(2, t=NAN)}, ValueError, "temperatures must be finite numbers"),
        ({"sampling_inputs": transform(2, p=NAN)}, ValueError, "top_ps must be numbers, not NaN"),
        ({**POOL, "sampling_inputs": transform(2)}, ValueError, "is_verify needs SamplingKernelInputs"),
        ({**POOL, "last_nextn_token_logprobs": None}, TypeError, "last_nextn_token_logprobs must be a tensor"),
        ({**POOL, "last_nextn_token_logprobs": torch.zeros(5, 48)}, ValueError, "last_nextn_token_logprobs has"),
        ({**POOL, "last_nextn_token_logprobs": torch.zeros(0, 40)}, ValueError, "must have at least one row"),
        ({**POOL, "last_next_n_token_ids": torch.zeros(4, dtype=torch.int32)}, ValueError, "has P = 5"),
        ({**POOL, "is_verify": torch.ones(2, dtype=torch.int32)}, TypeError, "is_verify must be bool"),
        ({**POOL, "mtp_info_read_rows": torch.zeros(2)}, TypeError, "mtp_info_read_rows must be int32"),
        ({"logprobs_out": torch.zeros(2, 48)}, ValueError, "logprobs_out has the shape"),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fused_sample(**{**GOOD, **change})
