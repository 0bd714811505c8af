"""BlockManager: what deepinfer._C and its twin in Python both promise."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from deepinfer._python.engine import BlockManager as Twin


@pytest.fixture
def make(implementation: ModuleType) -> Callable[..., Any]:
    return implementation.engine.BlockManager


class Holder(threading.Thread):
    """A thread that takes the lock and keeps it until told."""

    def __init__(self, manager: Any) -> None:
        super().__init__(daemon=True)
        self.manager, self.taken, self.let_go = manager, threading.Event(), threading.Event()

    def run(self) -> None:
        self.manager.lock()
        self.taken.set()
        self.let_go.wait(60)
        self.manager.unlock()

    def __enter__(self) -> Holder:
        self.start()
        assert self.taken.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go.set()
        self.join(60)
        assert not self.is_alive()


def test_conformance_vector(make: Callable[..., Any]) -> None:
    manager = make(5)
    assert manager.allocate_nolock(3) == [1, 2, 3]
    manager.unpin_blocks((1, 2, 3))
    assert manager.allocate_nolock(2) == [4, 3]


def test_block_zero_is_never_handed_out(make: Callable[..., Any]) -> None:
    manager = make(100)
    assert manager.get_num_free_blocks() == 99
    assert manager.allocate_nolock(99) == list(range(1, 100))
    assert manager.get_num_free_blocks() == 0


def test_freed_blocks_queue_back_to_front(make: Callable[..., Any]) -> None:
    manager = make(4)
    assert manager.allocate_nolock(3) == [1, 2, 3]
    manager.unpin_blocks([2])
    manager.unpin_blocks([1, 3])
    assert manager.allocate_nolock(3) == [2, 3, 1]


def test_a_block_is_free_when_its_last_reference_goes(make: Callable[..., Any]) -> None:
    manager = make(3)
    manager.allocate_nolock(1)
    manager.pin_blocks([1, 1])
    for free in (1, 1, 2):
        manager.unpin_blocks([1])
        assert manager.get_num_free_blocks() == free


def test_a_list_may_name_a_block_as_often_as_it_has_references(make: Callable[..., Any]) -> None:
    manager = make(3)
    manager.allocate_nolock(1)
    manager.pin_blocks([1])
    manager.unpin_blocks([1, 1])
    assert manager.allocate_nolock(2) == [2, 1]


def test_reset_restores_the_first_order(make: Callable[..., Any]) -> None:
    manager = make(4)
    manager.unpin_blocks(manager.allocate_nolock(2))
    manager.reset()
    assert manager.allocate_nolock(3) == [1, 2, 3]


def test_reset_is_refused_while_blocks_are_used(make: Callable[..., Any]) -> None:
    manager = make(4)
    manager.allocate_nolock(2)
    with pytest.raises(RuntimeError, match="2 blocks are in use"):
        manager.reset()


def test_the_reserved_block_alone_is_legal(make: Callable[..., Any]) -> None:
    manager = make(1)
    assert manager.allocate_nolock(0) == []
    with pytest.raises(RuntimeError, match="never hand out more than 0"):
        manager.allocate_nolock(1)


@pytest.mark.parametrize(
    ("count", "error", "text"),
    [(0, ValueError, "between 1"), (-3, ValueError, "not -3"), (2**31, ValueError, "2147483647"),
     (2**70, ValueError, "64 bits"), (2.0, TypeError, "not float"), ("4", TypeError, "not str"),
     (None, TypeError, "not NoneType")],
)  # fmt: skip
def test_bad_sizes(make: Callable[..., Any], count: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(count)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_bad_lock_timeouts(make: Callable[..., Any], seconds: float) -> None:
    with pytest.raises(ValueError, match="lock_timeout_s"):
        make(4, lock_timeout_s=seconds)


@pytest.mark.parametrize(
    ("count", "error", "text"),
    [(-1, ValueError, "negative"), (1.5, TypeError, "integer"), (5, RuntimeError, "never hand out more than 4"),
     (4, RuntimeError, "3 are free")],
)  # fmt: skip
def test_bad_allocations(make: Callable[..., Any], count: object, error: type[Exception], text: str) -> None:
    manager = make(5)
    manager.allocate_nolock(1)
    with pytest.raises(error, match=text):
        manager.allocate_nolock(count)
    assert manager.allocate_nolock(3) == [2, 3, 4], "a failed call must change nothing"


@pytest.mark.parametrize("call", ["pin_blocks", "unpin_blocks"])
@pytest.mark.parametrize(
    ("ids", "error", "text"),
    [([1, 0], ValueError, "block 0 does not exist"), ([1, 5], ValueError, "block 5 does not exist"),
     ([1, -1], ValueError, "block -1"), ([1, 3], ValueError, "block 3 is not in use"),
     ([1, "2"], TypeError, "not str"), ([1, 2.0], TypeError, "not float"), (7, TypeError, "not iterable"),
     ([2**64], ValueError, "64 bits")],
)  # fmt: skip
def test_bad_ids_change_nothing(
    make: Callable[..., Any], call: str, ids: object, error: type[Exception], text: str
) -> None:
    manager = make(5)
    manager.allocate_nolock(2)
    with pytest.raises(error, match=text):
        getattr(manager, call)(ids)
    manager.unpin_blocks([1, 2])
    assert manager.get_num_free_blocks() == 4, "the good id before the bad one must not have been pinned or unpinned"


def test_unpinning_more_often_than_pinned_changes_nothing(make: Callable[..., Any]) -> None:
    manager = make(5)
    manager.allocate_nolock(2)
    with pytest.raises(ValueError, match="listed 2 times and has 1 references"):
        manager.unpin_blocks([1, 2, 2])
    assert manager.get_num_free_blocks() == 2


def test_numpy_integers_and_any_iterable_are_ids(make: Callable[..., Any]) -> None:
    import numpy as np

    manager = make(np.int32(5))
    manager.allocate_nolock(np.int64(2))
    manager.pin_blocks(np.array([1, 2], dtype=np.int32))
    manager.unpin_blocks(block for block in (1, 2))
    manager.unpin_blocks({1, 2})
    assert manager.get_num_free_blocks() == 4


def test_ids_are_plain_integers(make: Callable[..., Any]) -> None:
    assert [type(block) for block in make(3).allocate_nolock(2)] == [int, int]


def test_waiting_for_the_lock_ends_in_an_error(make: Callable[..., Any]) -> None:
    manager = make(5, lock_timeout_s=0.05)
    manager.allocate_nolock(1)
    with Holder(manager):
        for wait in (manager.lock, manager.reset, lambda: manager.pin_blocks([1]), lambda: manager.unpin_blocks([1])):
            with pytest.raises(RuntimeError, match=r"not released within 0\.05 s"):
                wait()
        assert manager.get_num_free_blocks() == 3, "counting must not wait for the lock"
    manager.unpin_blocks([1])


def test_the_wait_is_twenty_seconds_unless_said_otherwise(native_c: ModuleType) -> None:
    from deepinfer._python.engine import BlockManager

    assert inspect.signature(BlockManager).parameters["lock_timeout_s"].default == 20.0
    signature = native_c.engine.BlockManager.__init__.__doc__.splitlines()[0]
    assert signature.rpartition("lock_timeout_s")[2].split("=")[1].startswith(" 20.0)")


def test_a_waiting_thread_lets_the_holder_run(make: Callable[..., Any]) -> None:
    """The wait is without the GIL: with it, the holder could never get as far as unlock."""
    manager = make(5, lock_timeout_s=30.0)
    got = threading.Event()

    def wait() -> None:
        manager.lock()
        got.set()
        manager.unlock()

    with Holder(manager):
        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        assert not got.wait(0.05)
    assert got.wait(60)
    waiter.join(60)


def test_the_lock_belongs_to_a_thread(make: Callable[..., Any]) -> None:
    manager = make(5)
    with pytest.raises(RuntimeError, match="not held"):
        manager.unlock()
    manager.lock()
    with pytest.raises(RuntimeError, match="already holds"):
        manager.lock()
    manager.allocate_nolock(1)
    with pytest.raises(RuntimeError, match="already holds"):
        manager.unpin_blocks([1])
    manager.unlock()
    with Holder(manager), pytest.raises(RuntimeError, match="another thread"):
        manager.unlock()


def test_threads_never_share_a_block(make: Callable[..., Any]) -> None:
    manager = make(65)
    used: set[int] = set()
    problems: list[str] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(200):
            manager.lock()
            mine = manager.allocate_nolock(chance.randint(1, 8))
            clash = used.intersection(mine)
            used.update(mine)
            manager.unlock()
            if clash:
                problems.append(f"{clash} handed out twice")
            manager.pin_blocks(mine)
            manager.unpin_blocks(mine)
            used.difference_update(mine)
            manager.unpin_blocks(mine)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not problems
    assert manager.get_num_free_blocks() == 64
    assert sorted(manager.allocate_nolock(64)) == list(range(1, 65))


def test_allocation_without_the_lock_corrupts_nothing(make: Callable[..., Any]) -> None:
    manager = make(1001)
    taken: list[list[int]] = [[] for _ in range(8)]

    def work(mine: list[int]) -> None:
        for _ in range(125):
            mine += manager.allocate_nolock(1)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(block for mine in taken for block in mine) == list(range(1, 1001))


def test_both_have_the_same_interface(native_c: ModuleType) -> None:
    """What only one of them can do breaks whoever gets the other."""
    compiled, twin = native_c.engine.BlockManager, Twin
    protocols = {"__enter__", "__exit__", "__len__", "__iter__", "__contains__", "__getitem__", "__call__"}

    def offered(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_") or name in protocols}

    assert offered(compiled) == offered(twin)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_there_is_no_second_one(make: Callable[..., Any], duplicate: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="pickle"):
        duplicate(make(4))
