"""The sampler on a GPU, with Triton's kernels: the reference's tokens, the same bits in any batch, no wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from deepinfer.ops import dispatch
from deepinfer.sampling import SamplingParams
from deepinfer.sampling.masks import allowed_tokens
from deepinfer.sampling.sampler import Sampled, Sampler, SampleRow

pytestmark = pytest.mark.gpu
WIDTH = 129280


@pytest.fixture(autouse=True)
def triton_alone() -> Iterator[None]:
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        yield


def row(index: int, **params: Any) -> SampleRow:
    return SampleRow(SamplingParams(**params), 2**63 + index, 100 + index)


def rows() -> list[SampleRow]:
    """Rows of every kind; the last two with a mask and a ban."""
    mask = allowed_tokens(WIDTH, None, range(0, WIDTH, 2))
    return [
        row(0, temperature=0, logprobs=3),
        row(1, logprobs=0),
        row(2, temperature=0.7, top_p=0.9, logprobs=5, logprobs_mode="processed"),
        row(3, top_k=40, logprobs=20),
        row(4, temperature=1e300),
        SampleRow(SamplingParams(top_p=0.5, logprobs=2), 5, 6, mask),
        SampleRow(SamplingParams(temperature=0, logprobs=1), 7, 8, banned=(1, 5, 7)),
    ]


def logits_of(count: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(3)) * 3


def test_tokens_and_log_probabilities_are_those_of_the_reference() -> None:
    wanted = rows()
    logits = logits_of(len(wanted))
    got = Sampler(WIDTH, "cuda").sample(logits.cuda(), wanted)
    with dispatch.using(dispatch.Settings("reference")):
        expected = Sampler(WIDTH, "cpu").sample(logits, wanted)
    for one, other in zip(got, expected, strict=True):
        assert one.token_id == other.token_id and (one.logprob is None) == (other.logprob is None)
        if one.logprob is not None and other.logprob is not None:
            assert one.logprob.rank == other.logprob.rank
            assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-5)
            assert [token for token, _ in one.logprob.top] == [token for token, _ in other.logprob.top]


def test_a_row_has_the_same_bits_alone_and_among_64() -> None:
    sampler = Sampler(WIDTH, "cuda")
    wanted = [one for _ in range(10) for one in rows()][:64]
    logits = logits_of(64).cuda()
    together = sampler.sample(logits, wanted)
    for index in (0, 2, 3, 5, 6, 40, 63):
        assert sampler.sample(logits[index : index + 1], wanted[index : index + 1]) == [together[index]]


def test_a_wrong_row_fails_alone() -> None:
    sampler = Sampler(WIDTH, "cuda")
    wanted = rows()
    logits = logits_of(len(wanted)).cuda()
    right = sampler.sample(logits, wanted)
    logits[1, 77], logits[5, 0] = float("nan"), float("inf")
    got = sampler.sample(logits, wanted)
    assert got[1] == got[5] == Sampled(-1, failed=True)
    assert [got[index] for index in (0, 2, 3, 4, 6)] == [right[index] for index in (0, 2, 3, 4, 6)]


def test_starting_waits_for_nothing() -> None:
    sampler = Sampler(WIDTH, "cuda")
    wanted = rows()
    logits = logits_of(len(wanted)).cuda()
    sampler.sample(logits, wanted)  # kernels are loaded now
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = sampler.start(logits, wanted)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not any(one.failed for one in pending.finish())


def test_prompts_in_pieces_have_the_same_bits() -> None:
    sampler = Sampler(WIDTH, "cuda")
    logits = logits_of(300).cuda()
    ids = [index * 401 % WIDTH for index in range(300)]
    whole = sampler.prompt_logprobs(logits, ids, 3)
    assert sampler.prompt_logprobs(logits[:7], ids[:7], 3) + sampler.prompt_logprobs(logits[7:], ids[7:], 3) == whole
