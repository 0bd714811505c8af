"""One step on the device: rows packed, up to two forwards, and a token drawn for every sequence that has its logits."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Literal

import torch

from deepinfer.cache.pool import Caches
from deepinfer.engine.outputs import TokenLogprobs
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.step import Chunk, Step
from deepinfer.model.batch import RowSpec
from deepinfer.model.block_tables import BlockTables
from deepinfer.model.model import Model
from deepinfer.sampling.sampler import Sampled, Sampler, SampleRow


@dataclass(frozen=True)
class Drawn:
    """What a step gave a sequence.

    token: None where its prompt goes on. prompt: the log-probabilities of the prompt's tokens at position `first` and
    after it, as far as they follow rows of the step; None for one whose logits are no numbers.
    """

    sequence: Sequence
    token: Sampled | None
    first: int = 0
    prompt: tuple[TokenLogprobs | None, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the sequence cannot go on."""
        return (self.token is not None and self.token.failed) or None in self.prompt


class Runner:
    """Computes steps with a model, over its caches."""

    def __init__(self, model: Model, caches: Caches) -> None:
        self._model = model
        self._caches = caches
        self._tables = BlockTables()
        self._sampler = Sampler(model.config.vocab_size, model.device)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy states, (from, to) slots, in order."""
        listed = list(pairs)
        self._caches.copy_slots([source for source, _ in listed], [target for _, target in listed])

    def run(self, step: Step) -> list[Drawn]:
        """Compute a step's rows and draw what follows. The host waits for the device once, at the end; before that
        only for log-probabilities of prompts.

        Returns one for every chunk, in the order of `step.chunks`.
        """
        self.copy(step.restore)
        prompts: dict[Sequence, torch.Tensor] = {}
        last = [*self._prefill(step.prefill, prompts), *self._decode(step.decode)]
        rows = [_sample_row(chunk.sequence) for chunk in step.chunks if chunk.last]
        logits = last[0] if len(last) == 1 else torch.cat(last) if last else None
        pending = self._sampler.start(logits, rows) if logits is not None else None
        told = {sequence: self._prompt(sequence, rows) for sequence, rows in prompts.items()}
        tokens = iter(pending.finish() if pending is not None else ())
        return [
            Drawn(
                chunk.sequence,
                next(tokens) if chunk.last else None,
                chunk.start + 1,
                told.get(chunk.sequence, ()),
            )
            for chunk in step.chunks
        ]

    def _prefill(self, chunks: Listed[Chunk], prompts: dict[Sequence, torch.Tensor]) -> list[torch.Tensor]:
        """The logits [1, V] of chunks that are last; those of prompts whose rows are all wanted go to `prompts`."""
        if not chunks:
            return []
        specs = [_rows(chunk) for chunk in chunks]
        logits = self._model.forward(self._model.batch(specs, decode=False), self._caches)
        found, place = [], 0
        for chunk, spec in zip(chunks, specs, strict=True):
            count = {"all": spec.count, "last": 1, "none": 0}[spec.wanted]
            own = logits[place : place + count]
            place += count
            if spec.wanted == "all":
                prompts[chunk.sequence] = own[: chunk.sequence.prompt_length - 1 - chunk.start]
            if chunk.last:
                found.append(own[-1:])
        return found

    def _decode(self, chunks: Listed[Chunk]) -> list[torch.Tensor]:
        if not chunks:
            return []
        specs = [_rows(chunk) for chunk in chunks]
        return [self._model.forward(self._model.batch(specs, decode=True, tables=self._tables), self._caches)]

    def _prompt(self, sequence: Sequence, logits: torch.Tensor) -> tuple[TokenLogprobs | None, ...]:
        params = sequence.params
        first = sequence.cached + 1
        return tuple(
            self._sampler.prompt_logprobs(
                logits,
                sequence.tokens[first : first + len(logits)],
                params.prompt_logprobs or 0,
                processed=params if params.logprobs_mode == "processed" else None,
            )
        )


def _rows(chunk: Chunk) -> RowSpec:
    sequence = chunk.sequence
    wanted: Literal["last", "all", "none"] = "last" if chunk.last else "none"
    if sequence.wants_prompt_logprobs:
        wanted = "all"
    return RowSpec(
        sequence.tokens,
        chunk.start,
        chunk.count,
        sequence.slot,
        sequence.blocks,
        sequence.prompt_length,
        wanted,
    )


def _sample_row(sequence: Sequence) -> SampleRow:
    params = sequence.params
    return SampleRow(
        params,
        sequence.seed,
        len(sequence.tokens),
        sequence.matcher.fill() if sequence.matcher is not None else None,
        tuple(sorted(sequence.stops)) if sequence.generated < params.min_tokens else (),
    )
