"""The sampler: what a row draws, alone and among others, and what it fails by."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepinfer.sampling import SamplingParams
from deepinfer.sampling.masks import allowed_tokens, words_of
from deepinfer.sampling.sampler import Sampled, Sampler, SampleRow

NAN, INF = float("nan"), float("inf")
CPU = torch.device("cpu")


def logits_of(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def row(seed: int = 0, position: int = 5, banned: tuple[int, ...] = (), mask: Any = None, **params: Any) -> SampleRow:
    return SampleRow(SamplingParams(**params), seed, position, mask, banned)


def bits(vocab_size: int, *tokens: int) -> torch.Tensor:
    """A bitmask that allows these tokens."""
    words = [0] * words_of(vocab_size)
    for token in tokens:
        words[token // 32] |= 1 << token % 32
    return torch.tensor([word - 2**32 if word >= 2**31 else word for word in words], dtype=torch.int32)


def test_greedy_is_the_largest_logit_and_of_equal_ones_the_first_whatever_the_seed() -> None:
    logits = logits_of(64, 128)
    logits[:, 40:100] = 30.0
    logits[0, 99], logits[1, 120] = 30.0 + 2e-6 * 4, 30.0 + 4e-6
    rows = [row(seed=seed * 7919, position=seed, temperature=0, top_p=0.1) for seed in range(64)]
    got = [one.token_id for one in Sampler(128, CPU).sample(logits, rows)]
    assert got == logits.argmax(1).tolist() and set(got[2:]) == {40} and got[:2] == [99, 120]


def test_a_row_is_a_function_of_that_row_alone() -> None:
    """Tokens and every log-probability of a row in a batch are the row's alone, where rows are summed in parts."""
    width = 40960
    logits = logits_of(6, width)
    rows = [
        row(1, 10, temperature=1.0, logprobs=3),
        row(2, 11, temperature=0.7, top_p=0.9, logprobs=5, logprobs_mode="processed"),
        row(3, 12, temperature=0, logprobs=2),
        row(4, 13, top_k=50, logprobs=1, banned=(7, 9)),
        row(5, 14, temperature=1.3, top_p=0.95, top_k=20, mask=bits(width, *range(0, width, 3))),
        row(6, 15, logprobs=0),
    ]
    sampler = Sampler(width, CPU)
    together = sampler.sample(logits, rows)
    for index, one in enumerate(rows):
        assert sampler.sample(logits[index : index + 1], [one]) == [together[index]]
    order = [4, 0, 2, 5, 1, 3]
    shuffled = sampler.sample(logits[order], [rows[index] for index in order])
    assert shuffled == [together[index] for index in order]


def test_a_wrong_row_fails_alone() -> None:
    logits = logits_of(8, 100)
    clean = logits.clone()
    logits[1, 17], logits[2, 3], logits[3], logits[4, 50], logits[5, 0] = NAN, INF, -INF, NAN, -INF
    rows = [row(index, logprobs=2) for index in range(8)]
    rows[4] = row(4, mask=bits(100, 1, 2), logprobs=2)  # the mask hides the NaN
    sampler = Sampler(100, CPU)
    got = sampler.sample(logits, rows)
    assert [one.failed for one in got] == [False, True, True, True, True, False, False, False]
    assert all(got[index] == Sampled(-1, failed=True) for index in (1, 2, 3, 4))
    whole = sampler.sample(clean, rows)
    assert [got[index] for index in (0, 6, 7)] == [whole[index] for index in (0, 6, 7)]


@pytest.mark.parametrize("seed", [0, -1, 1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**64 + 5])
def test_seeds_over_the_whole_range(seed: int) -> None:
    """The lowest 64 bits count, all of them; a completion's seed may lie beyond a request's range."""
    sampler = Sampler(512, CPU)
    logits = torch.zeros(3, 512)
    got = sampler.sample(logits, [row(seed), row(seed % 2**64), row(seed ^ (1 << 62))])
    assert got[0] == got[1] and not got[0].failed and got[0].token_id != got[2].token_id


def test_position_and_seed_are_the_key() -> None:
    sampler = Sampler(4096, CPU)
    drawn = sampler.sample(torch.zeros(40, 4096), [row(9, position) for position in range(40)])
    assert len({one.token_id for one in drawn}) > 35
    again = sampler.sample(torch.zeros(1, 4096), [row(9, 17)])
    assert again[0] == drawn[17]
    assert sampler.sample(torch.zeros(1, 4096), [row(9, 2**31 - 1)])[0].token_id >= 0


def test_draws_follow_the_probabilities() -> None:
    weights = torch.tensor([0.5, 0.25, 0.125, 0.125] + [0.0] * 28)
    count = 4000
    logits = weights.log().expand(count, 32).contiguous()
    drawn = Sampler(32, CPU).sample(logits, [row(3, position) for position in range(count)])
    share = torch.bincount(torch.tensor([one.token_id for one in drawn]), minlength=32) / count
    assert float((share - weights).abs().max()) < 0.03 and float(share[4:].sum()) == 0


def test_top_k_and_top_p_leave_only_the_likeliest() -> None:
    logits = logits_of(1, 200).expand(300, 200).contiguous()
    best = logits[0].argsort(descending=True).tolist()
    sampler = Sampler(200, CPU)

    def drawn(**params: Any) -> set[int]:
        return {one.token_id for one in sampler.sample(logits, [row(1, i, **params) for i in range(300)])}

    assert drawn(top_k=3, temperature=50.0) == set(best[:3])
    assert drawn(top_p=0.0) == {best[0]} == drawn(top_k=1)
    chances = logits[0].softmax(0)[best].cumsum(0)
    needed = int((chances <= 0.6).sum()) + 1
    assert drawn(top_p=0.6) <= set(best[:needed])
    assert len(drawn(top_k=2**31 - 1, temperature=1e300)) > 100
    assert len(drawn(top_k=0, temperature=50)) > 100


def test_banned_tokens_are_not_drawn_and_a_ban_that_leaves_nothing_is_lifted() -> None:
    logits = torch.zeros(50, 33)
    logits[:, 31], logits[:, 32] = 40.0, 30.0
    sampler = Sampler(33, CPU)
    assert {one.token_id for one in sampler.sample(logits, [row(i) for i in range(50)])} == {31}
    banned = sampler.sample(logits, [row(i, banned=(31, 32, 999)) for i in range(50)])
    assert {31, 32}.isdisjoint(one.token_id for one in banned) and len({one.token_id for one in banned}) > 10
    finished = sampler.sample(logits[:2], [row(mask=bits(33, 32), banned=(32,)), row(banned=tuple(range(33)))])
    assert [one.token_id for one in finished] == [32, 31]


def test_masks_allow_only_their_tokens_and_leave_other_rows_and_the_logits_alone() -> None:
    logits = logits_of(3, 70)
    before = logits.clone()
    rows = [row(temperature=0, mask=bits(70, 5, 31, 69)), row(temperature=0), row(temperature=0, mask=bits(32, 3, 4))]
    got = [one.token_id for one in Sampler(70, CPU).sample(logits, rows)]
    assert got[0] == max((5, 31, 69), key=lambda token: float(logits[0, token]))
    assert got[1] == int(logits[1].argmax())
    assert got[2] in (3, 4), "tokens beyond a short mask are not allowed"
    assert torch.equal(logits, before)


def test_bits_of_a_row() -> None:
    assert allowed_tokens(64, None, ()).tolist() == [-1, -1]
    assert allowed_tokens(33, None, ()).tolist() == [-1, 1]
    assert allowed_tokens(64, None, (0, 31, 32, 63)).tolist() == [2**31 - 2, 2**31 - 2]
    assert allowed_tokens(64, bits(64, 31, 40), (31,)).tolist() == [0, 256]
    assert allowed_tokens(64, bits(64, 31), (31,)).tolist() == [-(2**31), 0]


def test_no_rows_and_rows_that_do_not_fit() -> None:
    sampler = Sampler(64, CPU)
    assert sampler.sample(torch.zeros(0, 64), []) == []
    with pytest.raises(ValueError, match=r"shape \[2, 64\], not \[1, 64\]"):
        sampler.sample(torch.zeros(1, 64), [row(), row()])
    with pytest.raises(TypeError, match="float32, not bfloat16"):
        sampler.sample(torch.zeros(1, 64, dtype=torch.bfloat16), [row()])
    with pytest.raises(ValueError, match="at least 32"):
        Sampler(31, CPU)


def test_rows_of_any_stride_give_the_same() -> None:
    width = 101
    wide = logits_of(4, 128)
    view = wide[:, 3 : 3 + width]
    rows = [row(index, logprobs=2) for index in range(4)]
    sampler = Sampler(width, CPU)
    assert sampler.sample(view, rows) == sampler.sample(view.clone(), rows)
    assert math.isfinite(sampler.sample(wide.t().contiguous().t()[:, :width], rows)[0].logprob.logprob)  # type: ignore[union-attr]
