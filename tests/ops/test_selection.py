"""`select_topk` and `block_maxima` (model_spec 3.5, 3.6)."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.config.parse import parse_config
from deepinfer.loading.tiny import tiny_config
from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.selection import block_maxima, select_topk
from deepinfer.reference.attention import Attention, best
from deepinfer.reference.precision import Precision
from deepinfer.reference.weights import Weights
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("selection")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("selection")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _by_loop(row: list[float], length: int, k: int) -> list[int]:
    counted = [
        c for c in range(min(max(length, 0), len(row))) if not math.isnan(row[c]) and row[c] != -math.inf
    ]  # fmt: skip
    chosen = sorted(sorted(counted, key=lambda c: (-row[c], c))[:k])
    return chosen + [-1] * (k - len(chosen))


_SCORE = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 3e38, -3.3e38, 1e-40, math.inf, -math.inf, math.nan])


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.lists(_SCORE, min_size=9, max_size=9), st.integers(-2, 12)), max_size=4), st.integers(1, 12)
)
def test_reference_against_a_loop(rows: list[tuple[list[float], int]], k: int) -> None:
    scores = torch.tensor([row for row, _ in rows], dtype=torch.float32).reshape(-1, 9)
    lengths = torch.tensor([length for _, length in rows], dtype=torch.int32)
    with using("reference"):
        assert select_topk(scores, lengths, k).tolist() == [_by_loop(row, length, k) for row, length in rows]


def test_reference_against_the_oracle() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(300, 90, generator=generator) * 3).round()
    lengths = torch.randint(0, 91, (300,), generator=generator, dtype=torch.int32)
    expected = best(logits.masked_fill(torch.arange(90) >= lengths[:, None], -torch.inf), 30)
    with using("reference"):
        assert select_topk(logits, lengths, 30).long().equal(expected)
        assert select_topk(logits.bfloat16(), lengths, 30).long().equal(expected)


def test_candidate_blocks_against_the_oracle() -> None:
    config = parse_config(tiny_config())
    size, count = config.indexer.candidate_block, 5
    config = dataclasses.replace(config, indexer=dataclasses.replace(config.indexer, candidate_topk=count))
    lengths = torch.arange(0, 101, dtype=torch.int32)
    there = torch.arange(100) < lengths[:, None]
    logits = torch.randn(101, 100, generator=torch.Generator().manual_seed(3)).masked_fill(~there, -torch.inf)
    origin = Attention(config, Precision(), Weights({}, torch.float64), 0, "layers.0")
    expected = origin._candidates(logits, there)
    with using("reference"):
        scores, blocks = block_maxima(logits, lengths, size)
        assert blocks.tolist() == [-(-length // size) for length in range(101)]
        assert select_topk(scores, blocks, count).long().equal(expected)


def test_maxima_against_a_loop() -> None:
    logits = torch.randn(4, 21, generator=torch.Generator().manual_seed(1))
    logits[1, 3], logits[1, 8:16] = math.nan, math.nan
    with using("reference"):
        scores, blocks = block_maxima(logits, torch.tensor([21, 20, 9, -1], dtype=torch.int32), 8)
    assert blocks.tolist() == [3, 3, 2, 0]
    infinite = -math.inf
    firsts = [max(one for one in row[:8] if not math.isnan(one)) for row in logits.tolist()]
    second = max(logits[0, 8:16].tolist())
    assert scores.tolist() == [
        [firsts[0], second, math.inf], [firsts[1], infinite, math.inf], [firsts[2], math.inf, infinite], [infinite] * 3
    ]  # fmt: skip


SCORES, LENGTHS = torch.zeros(3, 8), torch.zeros(3, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((SCORES.double(), LENGTHS, 2), TypeError, "scores must be float32 or bfloat16, not float64"),
        ((SCORES[0], LENGTHS, 2), ValueError, "scores must have the shape"),
        ((torch.zeros(8, 3).T, LENGTHS, 2), ValueError, "last dimension of scores must be contiguous"),
        ((SCORES, LENGTHS.long(), 2), TypeError, "lengths must be int32"),
        ((SCORES, LENGTHS[:2], 2), ValueError, "lengths has the shape"),
        ((SCORES, LENGTHS.to("meta"), 2), ValueError, "all must be on one device"),
        ((SCORES, LENGTHS, 0), ValueError, "k must be at least 1 and at most 4096, not 0"),
        ((SCORES, LENGTHS, 4097), ValueError, "k must be at least 1 and at most 4096"),
        ((SCORES, LENGTHS, 2.0), TypeError, "k must be an int"),
        ((torch.zeros(1, 1).expand(3, 2**24 + 1), LENGTHS, 2), ValueError, "the last dimension of scores"),
        ((torch.zeros(2**24 + 1, dtype=torch.bfloat16)[None], LENGTHS[:1], 2), ValueError, "at most 16777216 columns"),
    ],
)
def test_refused(arguments: tuple, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        select_topk(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((SCORES.bfloat16(), LENGTHS, 8), TypeError, "block_maxima: logits must be float32, not bfloat16"),
        ((SCORES, LENGTHS[:1], 8), ValueError, "lengths has the shape"),
        ((SCORES, LENGTHS, 4), ValueError, "block_size must be one of 8, 16, not 4"),
        ((torch.zeros(8, 3).T, LENGTHS, 8), ValueError, "last dimension of logits must be contiguous"),
    ],
)
def test_maxima_refused(arguments: tuple, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        block_maxima(*arguments)
