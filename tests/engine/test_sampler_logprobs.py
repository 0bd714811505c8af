"""What the sampler tells of log-probabilities: raw and processed, ranks, the likeliest, those of prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.sampling import SamplingParams
from deepinfer.sampling.logprobs import LOWEST, log_softmax
from deepinfer.sampling.sampler import Sampler, SampleRow

WIDTH = 300
NAN = float("nan")


def logits_of(rows: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)) * 2


def told(logits: torch.Tensor, banned: tuple[int, ...] = (), **params: Any) -> Any:
    rows = [SampleRow(SamplingParams(**params), 5, position, banned=banned) for position in range(len(logits))]
    return [one.logprob for one in Sampler(WIDTH, "cpu").sample(logits, rows)]


@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 0.3, "top_k": 5}, {"top_p": 0.2}])
def test_raw_is_the_log_softmax_of_the_logits_whatever_is_done_to_them(how: dict[str, Any]) -> None:
    logits = logits_of(5)
    expected = logits.double().log_softmax(1)
    for index, one in enumerate(told(logits, logprobs=4, **how)):
        assert one.logprob == pytest.approx(float(expected[index, one.token_id]), abs=1e-5)
        assert one.logprob < -0.1, "a greedy token's log-probability is not that of a certain one"
        ids = logits[index].argsort(descending=True)[:4].tolist()
        assert [token for token, _ in one.top] == ids
        assert [value for _, value in one.top] == pytest.approx(expected[index, ids].tolist(), abs=1e-5)


def test_raw_does_not_know_of_bans_and_a_rank_may_be_behind_them() -> None:
    logits = logits_of(1)
    first, second = logits[0].argsort(descending=True)[:2].tolist()
    (one,) = told(logits, banned=(first,), temperature=0, logprobs=1)
    assert (one.token_id, one.rank) == (second, 2) and one.top[0][0] == first
    (other,) = told(logits, banned=(first,), temperature=0, logprobs=1, logprobs_mode="processed")
    assert (other.token_id, other.rank, other.top[0][0]) == (second, 1, second)


def test_processed_is_of_what_was_drawn_from() -> None:
    logits = logits_of(20)
    for index, one in enumerate(told(logits, temperature=0.5, top_k=3, logprobs=8, logprobs_mode="processed")):
        best = (logits[index].double() / 0.5).topk(3)
        expected = best.values.log_softmax(0).tolist()
        assert [token for token, _ in one.top] == best.indices.tolist(), "tokens that were filtered out are not told"
        assert [value for _, value in one.top] == pytest.approx(expected, abs=1e-5)
        assert one.top[one.rank - 1] == (one.token_id, one.logprob)
    (greedy,) = told(logits[:1], temperature=0, logprobs=5, logprobs_mode="processed")
    assert greedy.top == ((greedy.token_id, 0.0),) and greedy.logprob == 0.0


def test_ranks_and_the_likeliest_count_ties_by_id() -> None:
    logits = torch.zeros(1, WIDTH)
    logits[0, 200] = 1.0
    (one,) = told(logits, banned=(200, *range(7)), temperature=0, logprobs=3)
    assert (one.token_id, one.rank) == (7, 9)
    assert [token for token, _ in one.top] == [200, 0, 1]


def test_as_many_as_each_row_asks_for() -> None:
    logits = logits_of(4)
    rows = [SampleRow(SamplingParams(logprobs=count), 1, 2) for count in (None, 0, 7, WIDTH * 2)]
    got = Sampler(WIDTH, "cpu").sample(logits, rows)
    assert got[0].logprob is None
    counts = [len(one.logprob.top) for one in got if one.logprob]
    assert counts == [0, 7, WIDTH]


def test_a_token_without_probability_is_told_by_a_number() -> None:
    logits = torch.full((1, WIDTH), -float("inf"))
    logits[0, 3:5] = 0.0
    (one,) = Sampler(WIDTH, "cpu").prompt_logprobs(logits, [7], 9)
    assert one is not None and one.logprob == LOWEST and one.rank == 8
    assert [token for token, _ in one.top] == [3, 4]


def test_prompts_in_pieces_and_at_once() -> None:
    """Prompt log-probabilities do not depend on how a prompt is cut, which is also how they are worked out inside."""
    logits = logits_of(300)
    ids = [(index * 37) % WIDTH for index in range(300)]
    sampler = Sampler(WIDTH, "cpu")
    whole = sampler.prompt_logprobs(logits, ids, 2)
    expected = logits.double().log_softmax(1)
    for index in (0, 255, 256, 299):
        one = whole[index]
        assert one is not None and one.token_id == ids[index]
        assert one.logprob == pytest.approx(float(expected[index, ids[index]]), abs=1e-5)
        assert one.rank == 1 + int((logits[index] > logits[index, ids[index]]).sum())
    pieces = [
        one
        for first, last in ((0, 1), (1, 290), (290, 300))
        for one in sampler.prompt_logprobs(logits[first:last], ids[first:last], 2)
    ]
    assert pieces == whole


def test_prompts_processed_wrong_rows_and_wrong_arguments() -> None:
    logits = logits_of(3)
    logits[1, 4] = NAN
    sampler = Sampler(WIDTH, "cpu")
    got = sampler.prompt_logprobs(logits, [1, 2, 3], 1, processed=SamplingParams(temperature=0))
    assert got[1] is None and got[0] is not None and got[0].top == ((int(logits[0].argmax()), 0.0),)
    assert got[0].logprob == LOWEST
    assert sampler.prompt_logprobs(torch.zeros(0, WIDTH), [], 3) == []
    with pytest.raises(ValueError, match=r"next_ids must be in \[0, 300\)"):
        sampler.prompt_logprobs(logits, [1, 2, WIDTH], 1)
    with pytest.raises(ValueError, match=r"shape \[2, 300\]"):
        sampler.prompt_logprobs(logits, [1, 2], 1)


def test_log_softmax_has_the_same_bits_alone() -> None:
    logits = torch.randn(8, 40960, generator=torch.Generator().manual_seed(4)) * 3
    together = log_softmax(logits)
    for index in range(8):
        assert torch.equal(log_softmax(logits[index : index + 1])[0], together[index])
    assert float((together.double() - logits.double().log_softmax(1)).abs().max()) < 1e-5
