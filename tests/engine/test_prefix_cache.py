"""What is known of prefixes: found while it is there, forgotten when its memory is given away, and owned by nobody."""

from __future__ import annotations

import copy
import pickle
import threading
from types import ModuleType
from typing import Any

import pytest

from deepinfer import native
from deepinfer.cache.prefix import Context, Match, PrefixCache, block_hashes

ROOT = Context("weights", "format").root()
HASHES = block_hashes(range(8 * 128), ROOT)
OTHER = block_hashes(range(1, 8 * 128 + 1), ROOT)


class Host:
    """Managers of nine blocks and five slots, and what is known of them."""

    def __init__(self, module: ModuleType, blocks: int = 10, slots: int = 6) -> None:
        self.blocks = module.engine.BlockManager(blocks)
        self.slots = module.engine.BlockManager(slots)
        self.index = module.engine.PrefixIndex(self.blocks, self.slots)

    def remember(self, hashes: list[bytes], snapshots: tuple[int, ...]) -> list[int]:
        """Compute blocks for the hashes, snapshots behind some of them (counted from 1), and drop the blocks."""
        table: list[int] = self.blocks.allocate_nolock(len(hashes))
        for place, (one, block) in enumerate(zip(hashes, table, strict=True), 1):
            taken = self.slots.allocate_nolock(1) if place in snapshots else [0]
            assert self.index.insert(one, block, taken[0])
            if taken != [0]:
                self.slots.unpin_blocks(taken)
        self.blocks.unpin_blocks(table)
        return table

    def found(self, hashes: list[bytes], most: int = 99) -> int:
        """How many blocks are found, and dropped again."""
        blocks, slot = self.index.match(hashes, most)
        self.blocks.unpin_blocks(blocks)
        self.slots.unpin_blocks([slot] if slot else [])
        return len(blocks)

    def all_free(self) -> bool:
        return bool((self.blocks.get_num_free_blocks(), self.slots.get_num_free_blocks()) == (9, 5))


@pytest.fixture
def host(implementation: ModuleType) -> Host:
    return Host(implementation)


def test_a_prefix_is_found_up_to_its_last_snapshot(host: Host) -> None:
    table = host.remember(HASHES[:5], snapshots=(2, 4))
    blocks, slot = host.index.match(HASHES, 99)
    assert blocks == table[:4] and slot == 2, "the slot of the second snapshot"
    assert host.blocks.get_num_free_blocks() == 5 and host.slots.get_num_free_blocks() == 4, "with references"
    host.blocks.unpin_blocks(blocks)
    host.slots.unpin_blocks([slot])
    assert host.all_free()


@pytest.mark.parametrize(("most", "found"), [(99, 4), (4, 4), (3, 2), (2, 2), (1, 0), (0, 0)])
def test_a_limit_goes_back_to_the_snapshot_before_it(host: Host, most: int, found: int) -> None:
    host.remember(HASHES[:5], snapshots=(2, 4))
    assert host.found(HASHES, most) == found


def test_what_is_not_known(host: Host) -> None:
    host.remember(HASHES[:3], snapshots=(3,))
    assert host.index.match([], 5) == ([], 0)
    assert host.index.match(OTHER, 5) == ([], 0)
    assert host.index.match([OTHER[0], *HASHES[1:]], 5) == ([], 0)
    assert host.index.match(HASHES[:2], 5) == ([], 0), "known, and no snapshot in it"
    assert host.all_free()


def test_blocks_without_a_snapshot_are_not_found_until_one_comes(host: Host) -> None:
    table = host.blocks.allocate_nolock(2)
    for one, block in zip(HASHES[:2], table, strict=True):
        host.index.insert(one, block)
    assert host.found(HASHES) == 0
    (slot,) = host.slots.allocate_nolock(1)
    assert host.index.insert(HASHES[1], table[1], slot)
    assert host.found(HASHES) == 2


def test_a_matched_prefix_is_not_given_away(host: Host) -> None:
    table = host.remember(HASHES[:4], snapshots=(4,))
    blocks, slot = host.index.match(HASHES, 99)
    assert not set(host.blocks.allocate_nolock(5)) & set(table)
    assert slot not in host.slots.allocate_nolock(4)
    for manager in (host.blocks, host.slots):
        with pytest.raises(RuntimeError, match="0 are free"):
            manager.allocate_nolock(1)
    assert host.found(HASHES) == 4
    assert blocks == table


def test_blocks_that_hold_nothing_are_given_away_first(host: Host) -> None:
    table = host.remember(HASHES[:4], snapshots=(4,))
    assert host.blocks.get_num_kept_blocks() == 4 and host.blocks.get_num_free_blocks() == 9
    assert host.blocks.allocate_nolock(5) == [5, 6, 7, 8, 9]
    assert host.found(HASHES) == 4
    assert host.blocks.allocate_nolock(1) == table[3:], "then a sequence's last ones"
    assert host.found(HASHES) == 0


def test_the_longest_unused_goes_first(host: Host) -> None:
    """Two prefixes with snapshots at each block; the first is used again, so that the second goes."""
    first = host.remember(HASHES[:2], snapshots=(1, 2))
    second = host.remember(OTHER[:2], snapshots=(1, 2))
    assert host.found(HASHES) == 2
    host.blocks.allocate_nolock(5)
    assert host.blocks.allocate_nolock(2) == second[::-1]
    assert (host.found(HASHES), host.found(OTHER)) == (2, 0)
    assert host.blocks.allocate_nolock(1) == first[1:]
    assert host.found(HASHES) == 1, "a beginning outlives what continues it"


def test_a_snapshot_that_was_given_away_is_not_found(host: Host) -> None:
    host.remember(HASHES[:4], snapshots=(2, 4))
    assert host.found(HASHES) == 4
    host.slots.allocate_nolock(4)  # three that hold nothing, then the longest unused: the one at 2
    assert host.found(HASHES) == 4
    assert host.found(HASHES, 3) == 0
    host.slots.allocate_nolock(1)
    assert host.found(HASHES) == 0
    assert host.blocks.get_num_kept_blocks() == 4, "the blocks are still known"


def test_a_block_that_was_given_away_and_came_back_is_not_what_it_was(host: Host) -> None:
    host.remember(HASHES[:1], snapshots=(1,))
    everything = host.blocks.allocate_nolock(9)
    host.blocks.unpin_blocks(everything)
    assert host.found(HASHES) == 0 and host.blocks.get_num_kept_blocks() == 0
    assert host.slots.get_num_kept_blocks() == 0, "a snapshot whose block is gone is kept no longer, once that is seen"
    host.remember(OTHER[:9], snapshots=(8,))
    assert (host.found(HASHES), host.found(OTHER)) == (0, 8)


def test_of_two_blocks_with_one_content_the_first_is_known(host: Host) -> None:
    one, two = host.blocks.allocate_nolock(2)
    (slot,) = host.slots.allocate_nolock(1)
    assert host.index.insert(HASHES[0], one) is True
    assert host.index.insert(HASHES[0], one) is True, "once more"
    assert host.index.insert(HASHES[0], two, slot) is False
    assert host.index.match(HASHES, 1) == ([one], slot), "with the other's snapshot"
    host.blocks.unpin_blocks([one, two, one])
    assert host.blocks.get_num_kept_blocks() == 1
    (third,) = host.slots.allocate_nolock(1)
    host.index.insert(HASHES[0], host.blocks.allocate_nolock(1)[0], third)
    assert host.index.match(HASHES, 1)[1] == slot, "a snapshot that is known stays"


def test_a_block_that_is_gone_leaves_its_hash_to_another(host: Host) -> None:
    host.remember(HASHES[:1], snapshots=())
    table = host.blocks.allocate_nolock(9)
    (slot,) = host.slots.allocate_nolock(1)
    assert host.index.insert(HASHES[0], table[5], slot) is True
    assert host.index.match(HASHES, 9) == ([table[5]], slot)


def test_clear_forgets_and_frees_nothing_that_is_used(host: Host) -> None:
    host.remember(HASHES[:3], snapshots=(3,))
    used = host.blocks.allocate_nolock(1)
    host.index.insert(OTHER[0], used[0])
    blocks, slot = host.index.match(HASHES, 3)
    host.index.clear()
    assert host.index.match(HASHES, 3) == ([], 0)
    assert host.blocks.get_num_free_blocks() == 5 and host.slots.get_num_free_blocks() == 4
    host.blocks.unpin_blocks([*blocks, *used])
    host.slots.unpin_blocks([slot])
    assert host.all_free() and host.blocks.get_num_kept_blocks() == host.slots.get_num_kept_blocks() == 0
    host.remember(HASHES[:3], snapshots=(3,))
    assert host.found(HASHES) == 3


def test_reset_of_a_manager_forgets_what_it_kept(host: Host) -> None:
    host.remember(HASHES[:3], snapshots=(3,))
    host.blocks.reset()
    assert host.found(HASHES) == 0 and host.blocks.get_num_kept_blocks() == 0
    assert host.blocks.allocate_nolock(9) == list(range(1, 10))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((HASHES[0], 1), ValueError, "block 1 is not in use"),
        ((HASHES[0], 0), ValueError, "block 0 does not exist"),
        ((HASHES[0], 10), ValueError, "block 10 does not exist"),
        ((HASHES[0], 3, 2), ValueError, "block 2 is not in use"),
        ((HASHES[0], 3, -1), ValueError, "block -1 does not exist"),
        ((OTHER[0], 4), ValueError, "block 4 is known by another hash"),
        ((HASHES[0], 3, 1), ValueError, "slot 1 is known by another hash"),
        ((b"short", 3), ValueError, "hash must have 32 bytes, not 5"),
        (("x" * 32, 3), TypeError, "hash must be bytes, not str"),
        ((HASHES[0], 3.0), TypeError, "block must be an integer, not float"),
        ((HASHES[0], 3, None), TypeError, "slot must be an integer, not NoneType"),
        ((HASHES[0], 2**63), ValueError, "block does not fit 64 bits"),
    ],
)
def test_what_cannot_be_known(host: Host, arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    """Blocks 3 and 4 and slot 1 are in use; 4 is known by HASHES[1], with slot 1."""
    host.blocks.allocate_nolock(4)
    host.blocks.unpin_blocks([1, 2])
    host.slots.allocate_nolock(1)
    host.index.insert(HASHES[1], 4, 1)
    with pytest.raises(error) as caught:
        host.index.insert(*arguments)
    assert message in str(caught.value)
    assert host.index.match(HASHES[1:], 1) == ([4], 1) and host.index.match(HASHES, 8) == ([], 0), "nothing changed"


def test_what_cannot_be_looked_for(host: Host) -> None:
    with pytest.raises(ValueError, match="a hash must have 32 bytes, not 0"):
        host.index.match([HASHES[0], b""], 2)
    with pytest.raises(TypeError, match="a hash must be bytes, not int"):
        host.index.match([1], 2)
    with pytest.raises(ValueError, match="max_blocks must not be negative, not -1"):
        host.index.match(HASHES, -1)
    with pytest.raises(TypeError, match="max_blocks must be an integer, not str"):
        host.index.match(HASHES, "1")


def test_each_kind_needs_a_manager_of_its_own(implementation: ModuleType) -> None:
    manager = implementation.engine.BlockManager(5)
    with pytest.raises(ValueError, match="a manager each"):
        implementation.engine.PrefixIndex(manager, manager)


def test_two_over_the_same_managers_do_not_take_each_others_for_their_own(host: Host) -> None:
    """A block and a slot that one of them knew are given away, and then known to the other as something else."""
    other = type(host.index)(host.blocks, host.slots)
    host.remember(HASHES[:1], snapshots=(1,))
    table, slots = host.blocks.allocate_nolock(9), host.slots.allocate_nolock(5)
    assert all(other.insert(*one) for one in zip(OTHER, table[::-1], slots[::-1], strict=False))
    host.blocks.unpin_blocks(table)
    host.slots.unpin_blocks(slots)
    assert host.found(HASHES) == 0 and host.all_free()
    assert other.match(OTHER, 8)[0][0] == 1, "the block, and under its new hash"


def test_it_cannot_be_copied(host: Host) -> None:
    for operation in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            operation(host.index)


def test_it_waits_for_the_locks_and_says_so(implementation: ModuleType) -> None:
    blocks = implementation.engine.BlockManager(5)
    slots = implementation.engine.BlockManager(5, lock_timeout_s=0.05)
    index = implementation.engine.PrefixIndex(blocks, slots)
    thread = threading.Thread(target=slots.lock)
    thread.start()
    thread.join()
    for call in (lambda: index.match(HASHES, 1), lambda: index.insert(HASHES[0], 1), index.clear):
        with pytest.raises(RuntimeError, match=r"not released within 0\.05 s"):
            call()
    blocks.lock()  # they let go of it
    blocks.unlock()


def test_the_index_keeps_its_managers_alive(implementation: ModuleType) -> None:
    index = implementation.engine.PrefixIndex(
        implementation.engine.BlockManager(5), implementation.engine.BlockManager(5)
    )
    assert index.match(HASHES, 1) == ([], 0)
    with pytest.raises(ValueError, match="not in use"):
        index.insert(HASHES[0], 1)


def test_the_cache_over_it() -> None:
    """PrefixCache, with the part that this process uses: tokens, limits, and references given back."""
    blocks, slots = native.engine.BlockManager(10), native.engine.BlockManager(6)
    cache = PrefixCache(blocks, slots)
    table = blocks.allocate_nolock(4)
    assert cache.match(HASHES) == Match(0, (), 0)
    for place in range(4):
        assert cache.insert(HASHES[place], table[place])
    (snapshot,) = slots.allocate_nolock(1)
    assert cache.insert(HASHES[2], table[2], snapshot)
    slots.unpin_blocks([snapshot])
    blocks.unpin_blocks(table)

    match = cache.match(HASHES)
    assert match == Match(3 * 128, tuple(table[:3]), snapshot)
    cache.release_snapshot(match)
    blocks.unpin_blocks(match.blocks)
    assert cache.match(HASHES, limit=3 * 128 - 1) == cache.match(HASHES, limit=-5) == cache.match([]) == Match()
    cache.release(cache.match(HASHES, limit=3 * 128))
    cache.release(Match())
    assert (blocks.get_num_free_blocks(), slots.get_num_free_blocks()) == (9, 5)
    cache.clear()
    assert cache.match(HASHES) == Match()
