"""`random_sampling` (kernel_spec A.2, B.2)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.random_sampling import random_sampling
from tests.ops.test_philox import stream_by_definition
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def token_by_definition(probabilities: list[float], seed: int, subsequence: int) -> int:
    """B.2 in plain whole numbers: lanes, the total, words until one is below the limit, lane, column."""
    width = len(probabilities)
    if not all(p < 2 for p in probabilities):
        return -1
    masses = [int(max(p, 0.0) * 2**31) for p in probabilities]
    lanes = 2048 if width >= 8192 else next(2**n for n in range(20) if 2**n >= width)
    total = sum(masses)
    if not 0 < total < 2**32:
        return -1
    limit = (2**32 - 1) // total * total
    rho = next(word for word in stream_by_definition(seed, subsequence, 64) if word < limit) % total
    for column in sorted(range(width), key=lambda one: (one % lanes, one // lanes)):
        rho -= masses[column]
        if rho < 0:
            return column
    raise AssertionError("rho is below the total")


@small_cases("random_sampling")
def test_reference_against_the_definition(case: Case) -> None:
    call = case.call()
    probs, seeds, positions = (one.value for one in call.arguments[:3])
    expected = []
    for row, seed, position in zip(probs.tolist(), seeds.tolist(), positions.tolist(), strict=True):
        wrapped = (3 * position + int(call.parameters[1]) + 2**31) % 2**32 - 2**31
        expected.append(token_by_definition(row, seed, wrapped))
    assert run(case.factory, call, "reference", "cpu").results["out"].tolist() == expected


@small_cases("random_sampling")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("random_sampling")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def sample(rows: torch.Tensor, seeds: list[int], positions: list[int], **how: bool) -> list[int]:
    keys = torch.tensor(seeds, dtype=torch.uint64)
    found: list[int] = random_sampling(rows, keys, torch.tensor(positions, dtype=torch.int32), **how).tolist()
    return found


def test_conformance_vectors() -> None:
    """kernel_spec's vectors 8 and 9: words that are rejected, both streams, two levels."""
    row = torch.zeros(1, 32)
    row[0, :3] = torch.tensor([0.5, 0.25, 0.25])
    assert sample(row.repeat(3, 1), [42, 42, 2**64 - 1], [5, 6, 100]) == [0, 2, 1]
    assert sample(row, [7], [0], is_nextn_predict=True) == [2]
    assert sample(torch.full((3, 9000), 2.0**-14), [1, 2, 123456789], [1, 1, 77]) == [4008, 7046, 2954]


@pytest.mark.parametrize("width", [8, 16, 1024])
def test_draws_follow_the_probabilities(width: int) -> None:
    """Chi-square over 10000 positions of one seed; the bound is some five standard deviations above the mean."""
    count = 10_000
    probs = torch.softmax(torch.randn(width, generator=torch.Generator().manual_seed(width)), 0)
    tokens = random_sampling(
        probs.expand(count, width), torch.full((count,), 31), torch.arange(count, dtype=torch.int32)
    )
    counts = torch.bincount(tokens, minlength=width).double()
    wanted = probs.double() * count
    assert float(((counts - wanted) ** 2 / wanted).sum()) < width - 1 + 5 * (2 * width) ** 0.5


def test_rare_and_impossible_tokens() -> None:
    count = 3000
    rows = torch.zeros(1, 40).expand(count, 40).clone()
    rows[:, 11], rows[:, 30] = 1e-9, 1e-10
    seeds, positions = torch.arange(count), torch.zeros(count, dtype=torch.int32)
    assert random_sampling(rows, seeds, positions).unique().tolist() == [11]
    rows[:, 11] = 1e-10
    assert random_sampling(rows, seeds, positions).unique().tolist() == [-1]


def test_a_row_without_an_answer_leaves_the_others_alone() -> None:
    rows = torch.softmax(torch.randn(5, 64, generator=torch.Generator().manual_seed(1)), 1)
    before = sample(rows, [3] * 5, [1, 2, 3, 4, 5])
    rows[1, 4], rows[3] = float("nan"), 0.0
    assert sample(rows, [3] * 5, [1, 2, 3, 4, 5]) == [before[0], -1, before[2], -1, before[4]]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"probs": torch.zeros(3, 32, dtype=torch.bfloat16)}, TypeError, "random_sampling: probs must be float32"),
        ({"probs": torch.zeros(3, 33)}, ValueError, "the strides of probs must be multiples of 8"),
        ({"probs": torch.zeros(3, 8)[:, :0]}, ValueError, "probs must have at least one column"),
        ({"seq_seeds": torch.zeros(3, dtype=torch.int32)}, TypeError, "seq_seeds must be uint64 or int64"),
        ({"seq_seeds": torch.zeros(2, dtype=torch.int64)}, ValueError, "probs has N = 3"),
        ({"sample_positions": torch.zeros(3, dtype=torch.int64)}, TypeError, "sample_positions must be int32"),
        ({"probs": torch.zeros(3, 32, device="meta")}, ValueError, "all must be on one device"),
    ],
)
def test_refused(change: dict[str, torch.Tensor], error: type[Exception], text: str) -> None:
    good = {
        "probs": torch.zeros(3, 32),
        "seq_seeds": torch.zeros(3, dtype=torch.int64),
        "sample_positions": torch.zeros(3, dtype=torch.int32),
    }
    with pytest.raises(error, match=text):
        random_sampling(**{**good, **change})
