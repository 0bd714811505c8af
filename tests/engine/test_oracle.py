"""The oracle against what the specification promises of the model (model_spec 3, 10, 11.4)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from deepinfer.config import ModelConfig, parse_config
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.loading.tiny import PROMPT_TOKENS, VOCABULARY, tiny_config
from deepinfer.reference import DraftOracle, Forced, Oracle, Output, Precision
from deepinfer.reference.attention import best
from deepinfer.reference.layers import sinkhorn

IDEAL = Precision(rounded=False)


@functools.cache
def tiny() -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    config = parse_config(tiny_config())
    return config, dict(dummy_tensors(config))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The products are small: threads that wait for each other cost more than they give."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lookup() -> torch.Tensor:
    """An engram vocabulary of 400 ids that does not have the last 12 tokens."""
    return torch.arange(VOCABULARY - 12) % 400


def prompt(length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(11))


@functools.cache
def run(length: int, precision: Precision, keep_tokens: int | None = None) -> Output:
    config, tensors = tiny()
    return Oracle(config, tensors, precision, lookup=lookup())(prompt(length), keep_tokens=keep_tokens)


def test_what_comes_later_changes_nothing_before() -> None:
    whole, part = run(97, IDEAL), run(70, IDEAL)
    assert (whole.logits[:70] - part.logits).abs().max() < 1e-9
    for layer, routing in part.routing.items():
        assert routing.ids.equal(whole.routing[layer].ids[:70])
    for layer, choice in part.choices.items():
        assert choice.entries.equal(whole.choices[layer].entries[:70])


@pytest.mark.slow
def test_window_top_k_and_candidates_each_drop_keys_of_the_standard_prompt() -> None:
    config, _ = tiny()
    output = run(PROMPT_TOKENS, Precision())
    entries = {layer: (PROMPT_TOKENS) // config.ratios[layer] for layer in config.index_sources}
    assert config.attention.window < PROMPT_TOKENS
    for layer, choice in output.choices.items():
        chosen = choice.entries[-1]
        assert config.indexer.topk == (chosen >= 0).sum() < entries[layer]
        assert not chosen.equal(torch.arange(entries[layer])[-config.indexer.topk :])
    blocks = output.choices[6].blocks
    assert blocks is not None and (blocks[-1] >= 0).sum() * config.indexer.candidate_block < entries[6]
    for layer in (8, 10):
        within = output.choices[layer].entries[-1] // config.indexer.candidate_block
        assert set(within.tolist()) <= set(blocks[-1].tolist())
        assert output.choices[layer].logits[-1].isinf().sum() > 0


def test_forcing_the_own_choices_changes_nothing_and_others_do() -> None:
    config, tensors = tiny()
    free = run(97, Precision())
    own = Forced(
        {layer: routing.ids for layer, routing in free.routing.items()},
        {layer: choice.entries for layer, choice in free.choices.items()},
    )
    oracle = Oracle(config, tensors, Precision(), lookup=lookup())
    assert oracle(prompt(97), forced=own).logits.equal(free.logits)
    for other in (
        Forced({0: (own.routing[0] + 1) % config.moe.experts}),
        Forced({}, {2: own.entries[2].clamp_max(0)}),
    ):
        assert not oracle(prompt(97), forced=other).logits.equal(free.logits)


def test_rounding_is_small_beside_the_signal_and_the_order_of_sums_smaller() -> None:
    config, tensors = tiny()
    free = run(97, Precision())
    forced = Forced(
        {layer: routing.ids for layer, routing in free.routing.items()},
        {layer: choice.entries for layer, choice in free.choices.items()},
    )

    def distance(precision: Precision) -> float:
        logits = Oracle(config, tensors, precision, lookup=lookup())(prompt(97), forced=forced).logits
        return float((logits - free.logits).norm() / free.logits.norm())

    assert 0 < distance(Precision(sums="fp32")) < distance(IDEAL) < 0.5


def test_every_part_has_a_say() -> None:
    """Change one tensor of each kind: the logits of the last position change."""
    config, tensors = tiny()
    base = run(97, Precision()).logits[-1]
    for name in (
        "layers.0.attn.attn_sink", "layers.1.engram.q_weight", "layers.2.attn.compressor.wgate.weight",
        "layers.2.hc_ffn_base", "layers.3.ffn.gate.bias", "layers.6.attn.compressor.norm.weight",
        "layers.8.attn.indexer.weights_proj.weight", "layers.11.hc_ffn_scale", "norm.weight",
    ):  # fmt: skip
        changed = {**tensors, name: tensors[name] * -1.5}
        assert not Oracle(config, changed, Precision(), lookup=lookup())(prompt(97)).logits[-1].equal(base), name


def test_truncation_shows_only_the_last_window_keys_to_the_consumers() -> None:
    off = run(97, IDEAL)
    for keep in (97, 500):
        assert run(97, IDEAL, keep).logits.equal(off.logits)
    mask = run(97, IDEAL, 40)
    assert not mask.logits[-1].equal(off.logits[-1])
    for layer in range(7):
        assert mask.hidden[layer].equal(off.hidden[layer])


def test_the_draft_sees_what_was_accepted_and_no_more() -> None:
    config, tensors = tiny()
    draft = DraftOracle(Oracle(config, tensors, IDEAL, lookup=lookup()))
    tokens = [7, 8, 9, 10, 11]
    proposal = draft(run(97, IDEAL), 69, tokens)
    assert (proposal.logits - draft(run(70, IDEAL), 69, tokens).logits).abs().max() < 1e-9
    assert proposal.logits.shape == (5, VOCABULARY) and proposal.confidence.shape == (5,)
    other = draft(run(97, IDEAL), 69, [7, 8, 9, 400, 11])
    assert other.logits[:3].equal(proposal.logits[:3]) and not other.logits[3].equal(proposal.logits[3])
    assert not draft(run(97, IDEAL), 69, [6, *tokens[1:]]).logits[4].equal(proposal.logits[4])


def test_best_breaks_ties_by_the_lower_column_and_leaves_out_what_is_not_there() -> None:
    none = float("-inf")
    scores = torch.tensor([[1.0, 3, 3, 3, 2], [none, 1, none, 0, none], [none] * 5])
    assert best(scores, 3).tolist() == [[1, 2, 3], [1, 3, -1], [-1, -1, -1]]
    assert best(scores, 7)[0].tolist() == [0, 1, 2, 3, 4, -1, -1]


def test_sinkhorn_ends_on_the_columns() -> None:
    config, _ = tiny()
    found = sinkhorn(torch.randn(9, 4, 4, generator=torch.Generator().manual_seed(3)).double(), config.hyper)
    assert ((found.sum(-2) - (1 - 1e-6)).abs() < 2e-9).all()


def test_a_model_without_its_vocabulary_is_refused() -> None:
    config, tensors = tiny()
    with pytest.raises(ValueError, match="lookup"):
        Oracle(config, tensors)
    with pytest.raises(ValueError, match="hc_shifted"):
        Oracle(replace(config, hyper=replace(config.hyper, shifted=False)), tensors, lookup=lookup())
