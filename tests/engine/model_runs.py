"""The tiny model and its sequences, for tests of the model's forward."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch

from deepinfer.cache.pool import Caches
from deepinfer.config import ModelConfig, parse_config
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.loading.tiny import VOCABULARY, tiny_config
from deepinfer.model.batch import RowSpec
from deepinfer.model.model import Model, Truncation
from deepinfer.model.weights import gather_weights

BLOCK = 128
BLOCKS = 40
FEW_CANDIDATES = 8
"""Blocks of candidates, 64 entries, in place of the tiny model's 512: short prompts then go beyond them."""


def single_thread() -> Iterator[None]:
    """For a fixture. The products are small: threads that wait for each other cost more than they give."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def config(candidates: int = 64) -> ModelConfig:
    whole = parse_config(tiny_config())
    return replace(whole, indexer=replace(whole.indexer, candidate_topk=candidates))


@functools.cache
def tensors() -> dict[str, torch.Tensor]:
    return dict(dummy_tensors(config()))


@functools.cache
def lookup() -> torch.Tensor:
    """An engram vocabulary of 400 ids that does not have the last 12 tokens."""
    return torch.arange(VOCABULARY - 12) % 400


@functools.cache
def model(truncation: Truncation = "off", keep_tokens: int = 140, candidates: int = 64) -> Model:
    own = config(candidates)
    weights = gather_weights(own, tensors().__getitem__, "cpu")
    return Model(own, weights, lookup=lookup(), truncation=truncation, keep_tokens=keep_tokens)


def prompt(length: int, seed: int = 11) -> list[int]:
    found: list[int] = torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def caches(slots: int = 12) -> Caches:
    """Caches full of what is no number: what was never written must not be read."""
    found = Caches.allocate(config(), "cpu", blocks=BLOCKS, slots=slots)
    found.blocks_buffer.fill_(0xFF)
    found.slots_buffer.fill_(0xFF)
    return found


class Story:
    """A sequence: its tokens, how many are done, its slot, and its blocks, which do not lie in order."""

    def __init__(self, tokens: Sequence[int], index: int = 0, total: int | None = None) -> None:
        self.tokens, self.slot, self.total, self.done = list(tokens), index + 1, total, 0
        count = -(-len(tokens) // BLOCK)
        self.blocks = [BLOCKS - 1 - index - (count - 1 - at) * 12 for at in range(count)]

    def rows(self, count: int, wanted: Literal["last", "all", "none"] = "last") -> RowSpec:
        """The next rows."""
        start, self.done = self.done, self.done + count
        return RowSpec(self.tokens, start, count, self.slot, self.blocks[: -(-self.done // BLOCK)], self.total, wanted)


def forward(own: Model, memory: Caches, rows: Sequence[RowSpec], *, decode: bool = False) -> torch.Tensor:
    return own.forward(own.batch(rows, decode=decode), memory)


def run(
    tokens: Sequence[int],
    cuts: Sequence[int],
    *,
    own: Model | None = None,
    decoded: Sequence[int] = (),
    total: int | None = None,
) -> torch.Tensor:
    """The last token's logits [vocabulary] of a sequence whose prefill ends at each of `cuts`, and whose other tokens
    are decoded, as many a step as `decoded` says.
    """
    own, memory, story = own or model(), caches(), Story(tokens, total=total)
    logits = torch.empty(0)
    for cut in cuts:
        logits = forward(own, memory, [story.rows(cut - story.done)])
    for count in decoded:
        logits = forward(own, memory, [story.rows(count)], decode=True)
    assert story.done == len(tokens)
    return logits[-1]
