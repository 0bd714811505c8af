"""Where a free run first chose otherwise than the oracle, and whether the oracle was near a tie there.

A choice of a row may change that row and the later ones, in all that follows. So only those differences say anything
that no earlier one can have caused: at a row before all that differed in earlier layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from deepinfer.config import ModelConfig
from deepinfer.exactness.engine_run import EngineRun
from deepinfer.exactness.noise import Noise
from deepinfer.reference import Output

FACTOR = 4.0
"""Gaps of up to so many times the noise of the scores are near-ties."""


@dataclass(frozen=True)
class Choice:
    """One that differs. gap: how much better the oracle found what it chose itself. allowed: of a near-tie."""

    layer: int
    row: int
    kind: Literal["experts", "entries"]
    gap: float
    allowed: float

    @property
    def near_tie(self) -> bool:
        """Whether noise can explain it."""
        return self.gap <= self.allowed


@dataclass(frozen=True)
class Differences:
    """first: the choices that no other explains. experts, entries: rows that differ, by layer. rows: so many rows from
    the first on are untouched by any difference.
    """

    first: tuple[Choice, ...]
    experts: dict[int, int]
    entries: dict[int, int]
    rows: int

    @property
    def beyond(self) -> tuple[Choice, ...]:
        """Those that are no near-ties."""
        return tuple(one for one in self.first if not one.near_tie)


def first_differences(config: ModelConfig, expected: Output, run: EngineRun, noise: Noise) -> Differences:
    """Compare the choices of two free runs over the same prompt."""
    rows = len(run.logits)
    first: list[Choice] = []
    experts, entries = {}, {}
    for layer in sorted(run.routing):
        touched: list[int] = []
        if layer in run.entries:
            differ = (run.entries[layer] != expected.choices[layer].entries).any(-1).nonzero()[:, 0].tolist()
            entries[layer] = len(differ)
            touched += differ
            first += [_entries(config, expected, run, noise, layer, row) for row in differ if row < rows]
        differ = (run.routing[layer] != expected.routing[layer].ids).any(-1).nonzero()[:, 0].tolist()
        experts[layer] = len(differ)
        # In this layer a choice of entries has changed its own row alone.
        first += [_experts(expected, run, noise, layer, row) for row in differ if row < rows and row not in touched]
        rows = min([rows, *touched, *differ])
    return Differences(tuple(first), experts, entries, rows)


def _experts(expected: Output, run: EngineRun, noise: Noise, layer: int, row: int) -> Choice:
    scores = expected.routing[layer].scores[row]
    own, other = expected.routing[layer].ids[row].tolist(), run.routing[layer][row].tolist()
    by_rank = (scores[own] - scores[other]).abs().max()
    gap = max(float(by_rank), _gap(scores, set(own) - set(other), set(other) - set(own)))
    return Choice(layer, row, "experts", gap, FACTOR * noise.scores[layer])


def _entries(config: ModelConfig, expected: Output, run: EngineRun, noise: Noise, layer: int, row: int) -> Choice:
    choice = expected.choices[layer]
    own, other = (set(one[row].tolist()) - {-1} for one in (choice.entries, run.entries[layer]))
    lost, gained = own - other, other - own
    origin, explained = config.candidate_source(layer), False
    if origin is not None:
        tied = _tied_blocks(config, expected, noise, origin, row)
        size = config.indexer.candidate_block
        left = [{entry for entry in one if entry // size not in tied} for one in (lost, gained)]
        # What a block's entries gave way to is as it is: nothing stands beside it to be compared.
        explained = left != [lost, gained] and not all(left)
        lost, gained = left
    gap = 0.0 if explained else _gap(choice.logits[row], lost, gained)
    return Choice(layer, row, "entries", gap, FACTOR * noise.entries[layer])


def _gap(scores: torch.Tensor, lost: set[int], gained: set[int]) -> float:
    """How much better the best that was lost is than the worst that was gained."""
    if not lost and not gained:
        return 0.0
    if not lost or not gained:
        return math.inf  # more or fewer than there should be
    return max(float(scores[sorted(lost)].max() - scores[sorted(gained)].min()), 0.0)


def _tied_blocks(config: ModelConfig, expected: Output, noise: Noise, origin: int, row: int) -> set[int]:
    """Candidate blocks of the layer `origin` that noise may take in or leave out."""
    choice, size = expected.choices[origin], config.indexer.candidate_block
    assert choice.blocks is not None
    logits = choice.logits[row]
    best = torch.nn.functional.pad(logits, (0, -len(logits) % size), value=-math.inf).view(-1, size).amax(-1).tolist()
    last = (int(logits.isfinite().sum()) - 1) // size  # always taken in
    inside = {block for block in choice.blocks[row].tolist() if 0 <= block < last}
    outside = {block for block in range(last) if block not in inside}
    if not inside or not outside:
        return set()
    least, most = min(best[block] for block in inside), max(best[block] for block in outside)
    allowed = FACTOR * noise.entries[origin]
    left = {block for block in inside if best[block] - most <= allowed}
    return left | {block for block in outside if least - best[block] <= allowed}
