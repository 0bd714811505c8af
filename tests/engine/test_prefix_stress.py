"""Many sequences over few blocks and slots: everything found is what it should be, and nothing leaks."""

from __future__ import annotations

import random
import threading
from array import array
from dataclasses import dataclass, field
from types import ModuleType

BLOCKS, SLOTS = 41, 13
ROOT = b"r" * 32


@dataclass
class Load:
    """Sequences that share beginnings, as chats over a few system prompts do, on managers that are too small for all.

    block_memory, slot_memory: by place, the hash of the beginning that was written there last.
    """

    module: ModuleType
    rng: random.Random
    block_memory: dict[int, bytes] = field(default_factory=dict)
    slot_memory: dict[int, bytes] = field(default_factory=dict)
    running: list[tuple[list[bytes], list[int], int]] = field(default_factory=list)
    found_blocks: int = 0
    preempted: int = 0

    def __post_init__(self) -> None:
        engine = self.module.engine
        self.blocks, self.slots = engine.BlockManager(BLOCKS), engine.BlockManager(SLOTS)
        self.index = engine.PrefixIndex(self.blocks, self.slots)
        self.prompts = [self.tokens(8) for _ in range(4)]

    def tokens(self, blocks: int) -> list[int]:
        return [self.rng.randrange(1000) for _ in range(128 * blocks)]

    def admit(self) -> None:
        prompt = self.rng.choice(self.prompts)
        tokens = prompt[: 128 * self.rng.randint(1, 8)] + self.tokens(self.rng.randint(0, 4))
        hashes = self.module.engine.hash_blocks(array("i", tokens), ROOT)
        table, snapshot = self.index.match(hashes, len(hashes) - 1)
        assert [self.block_memory[block] for block in table] == hashes[: len(table)]
        assert not table or self.slot_memory[snapshot] == hashes[len(table) - 1]
        self.found_blocks += len(table)
        room = self.slots.get_num_free_blocks() > 0
        slot = self.slots.allocate_nolock(1)[0] if room else 0
        if snapshot:
            self.slots.unpin_blocks([snapshot])
        if not room:
            self.blocks.unpin_blocks(table)
            return
        self.slot_memory[slot] = hashes[len(table) - 1] if table else ROOT
        self.running.append((hashes, table, slot))

    def advance(self) -> None:
        """One block more for a sequence, from the others if need be; at every second one, or its last, a snapshot."""
        hashes, table, slot = self.running[self.rng.randrange(len(self.running))]
        if len(table) == len(hashes):
            return self.finish(table)
        while not self.blocks.get_num_free_blocks():
            self.preempted += 1
            self.finish(self.running[-1][1])
            if not any(table is other for _, other, _ in self.running):
                return None
        table += self.blocks.allocate_nolock(1)
        done = hashes[len(table) - 1]
        self.block_memory[table[-1]] = self.slot_memory[slot] = done
        snapshot = [0]
        if (len(table) % 2 == 0 or len(table) == len(hashes)) and self.slots.get_num_free_blocks():
            snapshot = self.slots.allocate_nolock(1)
            self.slot_memory[snapshot[0]] = done
        self.index.insert(done, table[-1], snapshot[0])
        if snapshot != [0]:
            self.slots.unpin_blocks(snapshot)
        return None

    def finish(self, table: list[int]) -> None:
        """End the sequence with this table."""
        (place,) = [place for place, (_, other, _) in enumerate(self.running) if other is table]
        _, _, slot = self.running.pop(place)
        self.blocks.unpin_blocks(table)
        self.slots.unpin_blocks([slot])

    def step(self) -> None:
        if not self.running or self.rng.random() < 0.15:
            self.admit()
        elif self.rng.random() < 0.03:
            self.finish(self.rng.choice(self.running)[1])
        else:
            self.advance()
        used = {block for _, table, _ in self.running for block in table}
        assert self.blocks.get_num_free_blocks() == BLOCKS - 1 - len(used)
        assert self.slots.get_num_free_blocks() == SLOTS - 1 - len(self.running)


def test_thousands_of_steps_under_eviction(implementation: ModuleType) -> None:
    load = Load(implementation, random.Random(5))
    for _ in range(6000):
        load.step()
    assert load.found_blocks > 500 and load.preempted > 20, "reuse, and too little room, both happened"
    while load.running:
        load.finish(load.running[-1][1])
    assert (load.blocks.get_num_free_blocks(), load.slots.get_num_free_blocks()) == (BLOCKS - 1, SLOTS - 1)
    assert load.blocks.get_num_kept_blocks() > BLOCKS // 2, "what was computed is still known"
    load.index.clear()
    assert load.blocks.get_num_kept_blocks() == load.slots.get_num_kept_blocks() == 0
    assert sorted(load.blocks.allocate_nolock(BLOCKS - 1)) == list(range(1, BLOCKS))


def test_both_implementations_answer_alike(native_c: ModuleType) -> None:
    from deepinfer import _python

    loads = [Load(module, random.Random(8)) for module in (native_c, _python)]
    for _ in range(3000):
        for load in loads:
            load.step()
        assert loads[0].running == loads[1].running


def test_threads_that_match_and_drop_lose_nothing(implementation: ModuleType) -> None:
    """Four threads find the same prefix, hold it for a moment and drop it, and one gives blocks away meanwhile."""
    blocks, slots = implementation.engine.BlockManager(33), implementation.engine.BlockManager(9)
    index = implementation.engine.PrefixIndex(blocks, slots)
    hashes = implementation.engine.hash_blocks(array("i", range(128 * 8)), ROOT)
    problems: list[BaseException] = []

    def remember() -> None:
        table = blocks.allocate_nolock(8)
        (slot,) = slots.allocate_nolock(1)
        for one, block in zip(hashes, table, strict=True):
            index.insert(one, block)
        index.insert(hashes[-1], table[-1], slot)
        slots.unpin_blocks([slot])
        blocks.unpin_blocks(table)

    def use() -> None:
        try:
            for _ in range(200):
                table, slot = index.match(hashes, 8)
                assert len(table) == len(set(table)) and len(table) in (0, 8)
                blocks.unpin_blocks(table)
                slots.unpin_blocks([slot] if slot else [])
        except BaseException as problem:
            problems.append(problem)

    remember()
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        blocks.lock()
        taken = blocks.allocate_nolock(min(20, blocks.get_num_free_blocks()))
        blocks.unlock()
        blocks.unpin_blocks(taken)
    for thread in threads:
        thread.join()
    assert not problems
    assert (blocks.get_num_free_blocks(), slots.get_num_free_blocks()) == (32, 8)
