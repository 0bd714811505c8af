"""A device without a model for the scheduler's tests: it remembers what was written where, and notices wrong reads.

What stands in a place is the whole history that led there, as a chain of hashes over the tokens, so that one wrong
block, slot, position or copy cannot go unnoticed.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field

from deepinfer import native
from deepinfer.cache.layout import blocks_of
from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.engine.outputs import Completion
from deepinfer.engine.scheduler import Scheduler
from deepinfer.engine.sequence import Request, Sequence, Status
from deepinfer.engine.step import Chunk, Limits, Step
from deepinfer.model.batch import RowSpec
from deepinfer.model.block_tables import BlockTables, tables_of

_arrivals = itertools.count()


@functools.cache
def follow(before: int, token: int) -> int:
    """The history `before` and one token more."""
    return hash((before, token))


def history(tokens: list[int]) -> int:
    """The history of all these tokens."""
    return functools.reduce(follow, tokens, 0)


@dataclass
class Device:
    """rows: (block, row) -> history. states: slot -> history. restored, saved, computed: how much was done.
    tables: what is kept of block tables from one decode step to the next.
    """

    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    tables: BlockTables = field(default_factory=BlockTables)
    restored: int = 0
    saved: int = 0
    computed: int = 0

    def copy(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Copy slots, in order."""
        for source, target in pairs:
            self.states[target] = self.states[source]

    def run(self, step: Step) -> None:
        """Compute a step; AssertionError where it would have read something else than the sequence's past."""
        self.copy(step.restore)
        self.restored += len(step.restore)
        sequences = [chunk.sequence for chunk in step.chunks]
        slots = [sequence.slot for sequence in sequences]
        assert len(set(slots)) == len(slots) and 0 not in slots, f"two sequences in one slot: {slots}"
        self.look_up(step.decode)
        for chunk in step.chunks:
            sequence = chunk.sequence
            assert chunk.count > 0 and chunk.start == sequence.cached and chunk.end <= len(sequence.tokens)
            state = history(sequence.tokens[: chunk.start])
            assert chunk.start == 0 or self.states[sequence.slot] == state, "the slot holds another state"
            past = 0
            for position, token in enumerate(sequence.tokens[: chunk.end]):
                past = follow(past, token)
                place = (sequence.blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS)
                if position < chunk.start:
                    assert self.rows[place] == past, f"position {position} was overwritten or never written"
                else:
                    self.rows[place] = past
            self.states[sequence.slot] = past
            self.computed += chunk.count

    def look_up(self, chunks: tuple[Chunk, ...]) -> None:
        """Block tables of a decode step; AssertionError where the kept ones are not what the sequences hold."""
        if not chunks:
            return
        rows = [
            RowSpec(one.sequence.tokens, one.start, one.count, one.sequence.slot, one.sequence.blocks) for one in chunks
        ]
        columns = max(blocks_of(one.end) for one in chunks)
        assert self.tables.of(rows, columns).tolist() == tables_of(rows, columns).tolist()


@dataclass
class World:
    """A scheduler over so many blocks and slots (those for padding included), and the device."""

    blocks: int = 20
    slots: int = 9
    limits: Limits = field(default_factory=lambda: Limits(sequences=4, chunk_tokens=256, length=1024))
    device: Device = field(default_factory=Device)

    def __post_init__(self) -> None:
        managers = native.engine.BlockManager(self.blocks), native.engine.BlockManager(self.slots)
        self.scheduler = Scheduler(*managers, self.limits)

    def arrive(
        self, tokens: list[int], *, salt: str = "", leader: Sequence | None = None, compiling: bool = False
    ) -> Sequence:
        """A new sequence in the queue."""
        made = Sequence(
            Request(tokens, salt=salt),
            list(tokens),
            len(tokens),
            next(_arrivals),
            Completion(0),
            salt.encode().ljust(32),
        )
        made.leader = leader
        made.status = Status.COMPILING if compiling else Status.WAITING
        self.scheduler.add(made)
        return made

    def step(self) -> Step | None:
        """Schedule, compute, keep, and give every sequence that reached its end a token; done at the longest."""
        step = self.scheduler.schedule()
        if step is None:
            return None
        self.device.run(step)
        saves = self.scheduler.advance(step)
        self.device.copy(saves)
        self.device.saved += len(saves)
        for chunk in step.chunks:
            if chunk.last:
                chunk.sequence.tokens.append(drawn(chunk.sequence.tokens))
        return step


def drawn(tokens: list[int]) -> int:
    """The token that follows, a function of all before."""
    return history(tokens) % 1000
