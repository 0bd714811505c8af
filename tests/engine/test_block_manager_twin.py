"""The compiled BlockManager and its twin do the same, step by step, over random histories."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from deepinfer._python.engine import BlockManager as Twin

BLOCKS = 9


def _outcome(call: Callable[[], object]) -> tuple[str, object]:
    try:
        return "returned", call()
    except (TypeError, ValueError, RuntimeError) as problem:
        return type(problem).__name__, str(problem)


class Pair(RuleBasedStateMachine):
    """Every step is done to both, and must end alike: the same result, or the same error in the same words."""

    compiled_type: Any

    def __init__(self) -> None:
        super().__init__()
        self.compiled, self.twin = self.compiled_type(BLOCKS), Twin(BLOCKS)
        self.held: dict[int, int] = {}

    def both(self, call: Callable[[Any], object]) -> tuple[str, Any]:
        compiled, twin = _outcome(lambda: call(self.compiled)), _outcome(lambda: call(self.twin))
        assert compiled == twin
        return compiled

    @rule(count=st.integers(-1, BLOCKS + 1))
    def allocate(self, count: int) -> None:
        status, blocks = self.both(lambda manager: manager.allocate_nolock(count))
        if status == "returned":
            assert not set(blocks) & set(self.held) and len(set(blocks)) == count
            self.held.update(dict.fromkeys(blocks, 1))

    @rule(ids=st.lists(st.integers(-1, BLOCKS), max_size=5))
    def pin(self, ids: list[int]) -> None:
        status, _ = self.both(lambda manager: manager.pin_blocks(ids))
        assert (status == "returned") == all(block in self.held for block in ids)
        if status == "returned":
            for block in ids:
                self.held[block] += 1

    @rule(ids=st.lists(st.integers(-1, BLOCKS), max_size=5))
    def unpin(self, ids: list[int]) -> None:
        status, _ = self.both(lambda manager: manager.unpin_blocks(ids))
        legal = all(ids.count(block) <= self.held.get(block, 0) for block in ids)
        assert (status == "returned") == legal
        if legal:
            for block in ids:
                self.held[block] -= 1
            self.held = {block: references for block, references in self.held.items() if references}

    @rule()
    def unpin_all(self) -> None:
        ids = list(self.held)
        assert self.both(lambda manager: manager.unpin_blocks(ids))[0] == "returned"
        self.held = {block: references - 1 for block, references in self.held.items() if references > 1}

    @rule()
    def reset(self) -> None:
        assert (self.both(lambda manager: manager.reset())[0] == "returned") == (not self.held)

    @rule(twice=st.booleans())
    def lock_and_unlock(self, twice: bool) -> None:
        assert self.both(lambda manager: manager.lock())[0] == "returned"
        if twice:
            assert self.both(lambda manager: manager.lock())[0] == "RuntimeError"
        assert self.both(lambda manager: manager.unlock())[0] == "returned"
        assert self.both(lambda manager: manager.unlock())[0] == "RuntimeError"

    @invariant()
    def free_blocks_are_those_not_held(self) -> None:
        free = self.both(lambda manager: manager.get_num_free_blocks())
        assert free == ("returned", BLOCKS - 1 - len(self.held))


def test_the_twin_does_what_the_extension_does(native_c: ModuleType) -> None:
    machine = type("Pair", (Pair,), {"compiled_type": native_c.engine.BlockManager})
    run_state_machine_as_test(machine, settings=settings(max_examples=200))
