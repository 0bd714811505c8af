"""Truncated prefill (model_spec 3.8): what the layers from the first of ratio 1 on see, and which rows they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deepinfer.errors import ConfigError
from deepinfer.model.model import Model, Trace
from deepinfer.model.weights import gather_weights
from deepinfer.reference import Oracle, Precision
from tests.engine.model_runs import (
    FEW_CANDIDATES,
    Story,
    caches,
    config,
    forward,
    lookup,
    model,
    prompt,
    run,
    single_thread,
    tensors,
)

KEEP = 40
LENGTH = 150


one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)


def truncated(mode: str, keep: int = KEEP) -> Model:
    return model(mode, keep, FEW_CANDIDATES)  # type: ignore[arg-type]


@pytest.mark.parametrize("cuts", [(), (100, 110, 131), (149,)])
def test_compact_equals_mask_whatever_the_chunks(cuts: tuple[int, ...]) -> None:
    tokens = prompt(LENGTH)
    mask = run(tokens, [LENGTH], own=truncated("mask"))
    for mode in ("mask", "compact"):
        assert run(tokens, [*cuts, LENGTH], own=truncated(mode), total=LENGTH).equal(mask), mode


def test_decoding_goes_on_alike() -> None:
    tokens = prompt(LENGTH + 7)
    found = [
        run(tokens, [*cuts, LENGTH], own=truncated(mode), total=LENGTH, decoded=(1, 4, 2))
        for mode, cuts in (("mask", ()), ("compact", ()), ("compact", (57, 133)))
    ]
    assert found[1].equal(found[0]) and found[2].equal(found[0])


def test_a_short_prompt_or_a_long_reach_change_nothing_and_others_do() -> None:
    """The six consumers' windows reach back 6 * 31 positions in all."""
    plain, tokens = model(candidates=FEW_CANDIDATES), prompt(200)
    assert run(tokens[:KEEP], [KEEP], own=truncated("compact")).equal(run(tokens[:KEEP], [KEEP], own=plain))
    off = run(tokens, [200], own=plain)
    assert run(tokens, [200], own=truncated("compact", 6 * 31 + 1)).equal(off)
    assert not run(tokens, [200], own=truncated("compact")).equal(off)


def test_the_consumers_have_the_kept_rows_alone_and_a_chunk_without_one_its_last() -> None:
    tokens = prompt(LENGTH)
    own, memory, story, trace = truncated("compact"), caches(), Story(tokens, total=LENGTH), Trace()
    first = own.batch([story.rows(100, "none")], decode=False)
    own.forward(first, memory, trace=trace)
    border = config().first_consumer
    assert len(trace.hidden[border - 1]) == 100 and trace.rows[border - 1] is None
    assert len(trace.hidden[border]) == 1 and trace.rows[border].tolist() == [99]  # type: ignore[union-attr]
    own.forward(own.batch([story.rows(50)], decode=False), memory, trace=trace)
    assert trace.rows[border].tolist() == list(range(10, 50))  # type: ignore[union-attr]


def test_mask_follows_the_oracle() -> None:
    tokens = prompt(100)
    oracle = Oracle(config(FEW_CANDIDATES), tensors(), Precision(), lookup=lookup())
    expected = oracle(torch.tensor(tokens), keep_tokens=KEEP)
    found = forward(truncated("mask"), caches(), [Story(tokens).rows(100, "all")])
    off = forward(model(candidates=FEW_CANDIDATES), caches(), [Story(tokens).rows(100, "all")])
    error, change = (float((one.double() - expected.logits).norm() / expected.logits.norm()) for one in (found, off))
    assert error < 0.2 * change


def test_several_sequences_keep_rows_of_their_own() -> None:
    own, memory = truncated("compact"), caches()
    stories = [Story(prompt(length, seed=length), index) for index, length in enumerate((150, 30, 90))]
    logits = forward(own, memory, [story.rows(len(story.tokens)) for story in stories])
    for story, found in zip(stories, logits, strict=True):
        assert found.equal(run(story.tokens, [len(story.tokens)], own=own))


def test_rows_that_are_left_out_have_no_logits() -> None:
    with pytest.raises(ValueError, match=f"logits of {LENGTH - KEEP} rows"):
        forward(truncated("compact"), caches(), [Story(prompt(LENGTH)).rows(LENGTH, "all")])


def test_what_cannot_be_truncated_is_refused() -> None:
    weights = gather_weights(config(), tensors().__getitem__, "cpu")
    with pytest.raises(ValueError, match="off, mask or compact"):
        Model(config(), weights, lookup=lookup(), truncation="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least the window, 32"):
        Model(config(), weights, lookup=lookup(), truncation="mask", keep_tokens=31)
    short = Model(config(), weights, lookup=lookup(), truncation="mask", keep_tokens=35)
    with pytest.raises(ValueError, match="at least 38"):
        forward(short, caches(), [Story(prompt(3)).rows(3)])


def test_a_model_that_the_kernels_do_not_know_is_refused() -> None:
    weights = gather_weights(config(), tensors().__getitem__, "cpu")
    other = replace(
        config(),
        attention=replace(config().attention, head_dim=256),
        hyper=replace(config().hyper, shifted=False),
        indexer=replace(config().indexer, topk=12),
    )
    with pytest.raises(ConfigError, match=r"head_dim is 256.*index_topk is 12.*hc_shifted"):
        Model(other, weights, lookup=lookup())
    with pytest.raises(ValueError, match="lookup"):
        Model(config(), weights)
    with pytest.raises(ValueError, match="max_positions"):
        Model(config(), weights, lookup=lookup(), max_positions=0)
