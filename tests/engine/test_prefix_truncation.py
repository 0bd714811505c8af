"""Prefix reuse where prompts are truncated: exact up to `reusable_tokens`, and that is how far it may go."""

from __future__ import annotations

import functools
from typing import Literal

import pytest
import torch

from deepinfer.cache.prefix import reusable_tokens
from tests.engine.model_runs import Story, caches, forward, model, prompt, single_thread

KEPT = 40
"""Tokens that the truncation keeps: the tiny model's window of 32, and more than the 6 that a step may take back."""
PREFIX = 128

one_thread = pytest.fixture(autouse=True)(single_thread)


@functools.cache
def continued(mode: Literal["off", "mask", "compact"], total: int, after: int = 0) -> list[torch.Tensor]:
    """Logits of a prompt of `total` tokens and of two tokens decoded after it. `after` another prompt of so many,
    it begins with the blocks and the state that that one had behind their common 128.
    """
    own, memory = model(mode, KEPT), caches()
    tokens = prompt(total + 2)
    second = Story(tokens, index=1, total=total)
    if after:
        first = Story([*tokens[:PREFIX], *prompt(after - PREFIX, seed=5)], total=after)
        forward(own, memory, [first.rows(PREFIX)])
        memory.copy_slots([first.slot], [9])
        forward(own, memory, [first.rows(after - PREFIX)])
        memory.copy_slots([9], [second.slot])
        second.blocks[0], second.done = first.blocks[0], PREFIX
    found = [forward(own, memory, [second.rows(total - second.done)])[-1]]
    found += [forward(own, memory, [second.rows(1)], decode=True)[-1] for _ in range(2)]
    return found


@pytest.mark.parametrize("mode", ["mask", "compact"])
@pytest.mark.parametrize("after", [142, 250])
def test_up_to_the_limit_it_is_exact(mode: Literal["mask", "compact"], after: int) -> None:
    """The other prompt keeps other tokens: some of those before its snapshot, or none of them."""
    total = PREFIX + KEPT
    assert reusable_tokens(total, mode, KEPT) == PREFIX
    pairs = zip(continued(mode, total), continued(mode, total, after), strict=True)
    assert all(computed.equal(reused) for computed, reused in pairs)


def test_one_token_less_and_it_would_not_be() -> None:
    """The prompt then keeps a token before the snapshot, which the other prompt did not keep."""
    total = PREFIX + KEPT - 1
    assert reusable_tokens(total, "mask", KEPT) == 0
    assert not continued("mask", total)[0].equal(continued("mask", total, after=250)[0])


def test_without_truncation_the_last_token_is_enough_to_compute() -> None:
    total = PREFIX + 1
    assert reusable_tokens(total) == PREFIX
    pairs = zip(continued("off", total), continued("off", total, after=250), strict=True)
    assert all(computed.equal(reused) for computed, reused in pairs)
