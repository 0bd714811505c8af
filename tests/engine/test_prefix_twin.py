"""The compiled part and its twin do the same over random histories of sequences, and lose no block, slot or reference.

The model beside them is the memory itself: what was last written to each block and slot. Whatever is found must still
hold what its hash stands for.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from deepinfer._python import engine as twin

BLOCKS, SLOTS, LENGTH = 9, 5, 4
Path = tuple[int, ...]
"""A beginning: one of two tokens for each block."""


def hash_of(path: Path) -> bytes:
    return hashlib.sha256(repr(path).encode()).digest()


def outcome(call: Callable[[], object]) -> tuple[str, Any]:
    try:
        return "returned", call()
    except (TypeError, ValueError, RuntimeError) as problem:
        return type(problem).__name__, str(problem)


@dataclass
class Side:
    """Managers and index of one implementation."""

    blocks: Any
    slots: Any
    index: Any

    @classmethod
    def of(cls, engine: Any) -> Side:
        blocks, slots = engine.BlockManager(BLOCKS), engine.BlockManager(SLOTS)
        return cls(blocks, slots, engine.PrefixIndex(blocks, slots))


@dataclass
class Running:
    """A sequence: the tokens that it is going to have, its blocks so far, and its slot."""

    path: Path
    table: list[int]
    slot: int


class Pair(RuleBasedStateMachine):
    compiled: Any

    def __init__(self) -> None:
        super().__init__()
        self.sides = [Side.of(self.compiled), Side.of(twin)]
        self.block_memory: dict[int, Path] = {}
        self.slot_memory: dict[int, Path] = {}
        self.running: list[Running] = []
        self.extra: list[int] = []  # blocks that somebody pinned once more

    def both(self, call: Callable[[Side], object]) -> tuple[str, Any]:
        compiled, other = (outcome(lambda side=side: call(side)) for side in self.sides)
        assert compiled == other
        return compiled

    def returned(self, call: Callable[[Side], object]) -> Any:
        status, result = self.both(call)
        assert status == "returned", result
        return result

    def allocate(self, kind: str, count: int) -> list[int]:
        """Blocks or slots, which hold nothing that is worth anything from now on; [] where there are too few."""
        status, places = self.both(lambda side: getattr(side, kind).allocate_nolock(count))
        return places if status == "returned" else []

    @rule(path=st.lists(st.integers(0, 1), min_size=1, max_size=LENGTH).map(tuple), most=st.integers(0, LENGTH))
    def start(self, path: Path, most: int) -> None:
        hashes = [hash_of(path[: end + 1]) for end in range(len(path))]
        table, snapshot = self.returned(lambda side: side.index.match(hashes, most))
        assert len(table) <= most and bool(table) == bool(snapshot)
        assert [self.block_memory[block] for block in table] == [path[: end + 1] for end in range(len(table))]
        slot = self.allocate("slots", 1)
        if snapshot:
            assert self.slot_memory[snapshot] == path[: len(table)]
            assert slot != [snapshot]
            self.returned(lambda side: side.slots.unpin_blocks([snapshot]))
        if not slot:
            self.returned(lambda side: side.blocks.unpin_blocks(table))
            return
        self.slot_memory[slot[0]] = path[: len(table)]
        self.running.append(Running(path, table, slot[0]))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), snapshot=st.booleans(), tell=st.booleans())
    def grow(self, which: int, snapshot: bool, tell: bool) -> None:
        sequence = self.running[which % len(self.running)]
        done = sequence.path[: len(sequence.table) + 1]
        block = self.allocate("blocks", 1) if len(sequence.table) < len(sequence.path) else []
        if not block:
            return
        sequence.table += block
        self.block_memory[block[0]] = self.slot_memory[sequence.slot] = done
        copied = self.allocate("slots", 1) if snapshot else []
        self.slot_memory.update(dict.fromkeys(copied, done))
        if tell:
            self.returned(lambda side: side.index.insert(hash_of(done), block[0], copied[0] if copied else 0))
        self.returned(lambda side: side.slots.unpin_blocks(copied))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        sequence = self.running.pop(which % len(self.running))
        self.returned(lambda side: side.blocks.unpin_blocks(sequence.table))
        self.returned(lambda side: side.slots.unpin_blocks([sequence.slot]))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def pin_once_more(self, which: int) -> None:
        table = list(self.running[which % len(self.running)].table)
        self.returned(lambda side: side.blocks.pin_blocks(table))
        self.extra += table

    @rule()
    def unpin_those(self) -> None:
        extra, self.extra = self.extra, []
        self.returned(lambda side: side.blocks.unpin_blocks(extra))

    @rule(path=st.lists(st.integers(0, 1), min_size=1, max_size=2), block=st.integers(-1, BLOCKS),
          slot=st.integers(-1, SLOTS))  # fmt: skip
    def insert_what_may_be_wrong(self, path: list[int], block: int, slot: int) -> None:
        """A block or slot that is unused or unknown, or holds something else, under a hash that nobody asks for."""
        held = {place for sequence in self.running for place in sequence.table} | set(self.extra)
        wrong = block not in held or (slot != 0 and slot not in {sequence.slot for sequence in self.running})
        if wrong:
            assert self.both(lambda side: side.index.insert(hash_of((9, *path)), block, slot))[0] == "ValueError"

    @rule()
    def clear(self) -> None:
        self.returned(lambda side: side.index.clear())

    @rule()
    def reset(self) -> None:
        unused = not self.extra and not any(sequence.table for sequence in self.running)
        assert (self.both(lambda side: side.blocks.reset())[0] == "returned") == unused
        assert (self.both(lambda side: side.slots.reset())[0] == "returned") == (not self.running)

    @invariant()
    def what_nobody_uses_is_free(self) -> None:
        references = Counter(self.extra)
        for sequence in self.running:
            references.update(sequence.table)
        free = self.returned(lambda side: (side.blocks.get_num_free_blocks(), side.slots.get_num_free_blocks()))
        assert free == (BLOCKS - 1 - len(references), SLOTS - 1 - len(self.running))
        kept = self.returned(lambda side: (side.blocks.get_num_kept_blocks(), side.slots.get_num_kept_blocks()))
        assert kept[0] <= free[0] and kept[1] <= free[1]

    def teardown(self) -> None:
        while self.running:
            self.end(0)
        self.unpin_those()
        self.what_nobody_uses_is_free()
        assert len(set(self.allocate("blocks", BLOCKS - 1))) == BLOCKS - 1, "every block can be had, once"
        assert len(set(self.allocate("slots", SLOTS - 1))) == SLOTS - 1


def test_the_twin_does_what_the_extension_does_and_nothing_is_lost(native_c: ModuleType) -> None:
    machine = type("Pair", (Pair,), {"compiled": native_c.engine})
    options = settings(max_examples=150, stateful_step_count=60)
    run_state_machine_as_test(machine, settings=options)


def test_what_is_forgotten_is_handed_out_in_the_order_of_its_blocks(native_c: ModuleType) -> None:
    for engine in (native_c.engine, twin):
        blocks, slots = engine.BlockManager(40), engine.BlockManager(3)
        index = engine.PrefixIndex(blocks, slots)
        blocks.lock()
        places = blocks.allocate_nolock(39)
        blocks.unlock()
        for place in reversed(places):
            assert index.insert(hashlib.sha256(bytes([place])).digest(), place)
        blocks.unpin_blocks(places)
        index.clear()
        blocks.lock()
        assert blocks.allocate_nolock(39) == sorted(places), engine
        blocks.unlock()
