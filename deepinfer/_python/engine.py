"""Block accounting, known prefixes, token-id encoding and the sampler's inputs, as `deepinfer._C.engine` has them."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn, SupportsIndex

from deepinfer._python.integers import MAX_INT32, as_integer
from deepinfer._python.prefix_index import HASH_BYTES, PrefixIndex, hash_blocks
from deepinfer._python.sampler_inputs import prepare_sampler_inputs
from deepinfer._python.sequences import SamplingValues, SequenceData, SequenceMetadata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "HASH_BYTES",
    "BlockManager",
    "PrefixIndex",
    "SamplingValues",
    "SequenceData",
    "SequenceMetadata",
    "encode_compressed",
    "hash_blocks",
    "prepare_sampler_inputs",
]

LOCK_TIMEOUT_S: Final = 20.0


class Allocation(enum.Enum):
    """Whether a request for blocks can be met: now, after others were freed, or not by this manager at all."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


class BlockManager:
    """Paged-cache blocks 1 .. num_blocks-1, handed out first in, first out; block 0 is reserved for padding.

    `lock`/`unlock` is the long lock, held by a caller over several operations and owned by a thread. A second,
    inner one guards the fields for one operation, so that a caller that forgot the first corrupts nothing.

    What a block holds may be worth keeping (PrefixIndex says so). Such a block is free like any other once its last
    reference is dropped, but is handed out only after those that hold nothing, the longest dropped first; until then
    it can be taken back as it is.

    Args:
        num_blocks: 1 to 2^31-1, the reserved block included.
        lock_timeout_s: how long `lock`, and what takes the lock, waits before RuntimeError.

    Errors: TypeError and ValueError for arguments that cannot be right, RuntimeError for a state that forbids it;
    a call that raises has changed nothing.
    """

    def __init__(self, num_blocks: SupportsIndex, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        count = as_integer(num_blocks, "num_blocks")
        if not 1 <= count <= MAX_INT32:
            raise ValueError(f"num_blocks must be between 1 and 2147483647 (block 0 is reserved), not {count}")
        if not 0 < lock_timeout_s <= 86400:
            raise ValueError(f"lock_timeout_s must be above 0 and at most 86400 seconds, not {lock_timeout_s:g}")
        self._num_blocks = count
        self._free = deque(range(1, count))
        self._references: Counter[int] = Counter()
        self._generations: Counter[int] = Counter()  # how often each block was handed out
        self._keeping: set[int] = set()  # blocks whose content is kept, in use or not
        self._kept: OrderedDict[int, None] = OrderedDict()  # those of them that are free, the longest free first
        self._state = threading.Lock()
        self._lock_timeout_s = lock_timeout_s
        self._lock_changed = threading.Condition(threading.Lock())
        self._owner: int | None = None

    def allocate_nolock(self, num_blocks: SupportsIndex) -> list[int]:
        """Take blocks from the front of the free list, each with one reference; kept ones only where no others are
        left. The caller holds the lock.
        """
        count = as_integer(num_blocks, "num_blocks")
        if count < 0:
            raise ValueError(f"num_blocks must not be negative, not {count}")
        with self._state:
            match self._can_allocate(count):
                case Allocation.NEVER:
                    raise RuntimeError(
                        f"cannot allocate {count} blocks: this manager can never hand out more than "
                        f"{self._num_blocks - 1}"
                    )
                case Allocation.LATER:
                    raise RuntimeError(f"cannot allocate {count} blocks: {self._count_free()} are free")
            blocks = [self._free.popleft() for _ in range(min(count, len(self._free)))]
            blocks += [self._kept.popitem(last=False)[0] for _ in range(count - len(blocks))]
            self._references.update(blocks)
            self._generations.update(blocks)
            self._keeping.difference_update(blocks)
        return blocks

    def pin_blocks(self, block_ids: Iterable[SupportsIndex]) -> None:
        """Add a reference to each block in use, once for every time it is listed. Takes the lock."""
        ids = [as_integer(block, "a block id") for block in block_ids]
        with self._locked(), self._state:
            for block, added in Counter(ids).items():
                self._check_used(block, 1)
                if self._references[block] + added > MAX_INT32:
                    raise RuntimeError(f"block {block} has too many references")
            self._references.update(ids)

    def unpin_blocks(self, block_ids: Iterable[SupportsIndex]) -> None:
        """Drop a reference of each block, back to front; those that reach zero join the end of the free list, or of
        the kept ones. Takes the lock.
        """
        ids = [as_integer(block, "a block id") for block in block_ids]
        with self._locked(), self._state:
            dropped: Counter[int] = Counter()
            for block in ids:
                dropped[block] += 1
                self._check_used(block, dropped[block])
            for block in reversed(ids):
                self._references[block] -= 1
                if self._references[block] == 0:
                    del self._references[block]
                    if block in self._keeping:
                        self._kept[block] = None
                    else:
                        self._free.append(block)

    def reset(self) -> None:
        """Restore the initial order 1, 2, ..., and keep nothing; legal only while every block is free. Takes the
        lock.
        """
        with self._locked(), self._state:
            used = self._num_blocks - 1 - self._count_free()
            if used:
                raise RuntimeError(f"cannot reset: {used} blocks are in use")
            self._free = deque(range(1, self._num_blocks))
            self._kept.clear()
            self._keeping.clear()

    def get_num_free_blocks(self) -> int:
        """How many blocks can be allocated, kept ones included."""
        with self._state:
            return self._count_free()

    def get_num_kept_blocks(self) -> int:
        """How many of the free blocks hold what is kept."""
        with self._state:
            return len(self._kept)

    def lock(self) -> None:
        """Take the lock, or raise RuntimeError after `lock_timeout_s`."""
        me = threading.get_ident()
        with self._lock_changed:
            if self._owner == me:
                raise RuntimeError("this thread already holds the lock")
            if not self._lock_changed.wait_for(lambda: self._owner is None, self._lock_timeout_s):
                raise RuntimeError(f"the lock was not released within {self._lock_timeout_s:g} s")
            self._owner = me

    def unlock(self) -> None:
        """Release the lock; only the thread that took it may."""
        with self._lock_changed:
            if self._owner is None:
                raise RuntimeError("the lock is not held")
            if self._owner != threading.get_ident():
                raise RuntimeError("another thread holds the lock")
            self._owner = None
            self._lock_changed.notify()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot copy or pickle a BlockManager: two would hand out the same blocks")

    def _keep(self, block: int) -> int:
        """Keep what a block in use holds from its last reference on until it is handed out again; the generation by
        which `_holds` and `_take` know it.
        """
        with self._state:
            self._check_used(block, 1)
            self._keeping.add(block)
            return self._generations[block]

    def _holds(self, block: int, generation: int) -> bool:
        """Whether the block still holds what was kept then."""
        with self._state:
            return block in self._keeping and self._generations[block] == generation

    def _check_in_use(self, block: int) -> None:
        """Raise unless the block is in use."""
        with self._state:
            self._check_used(block, 1)

    def _check_room(self, blocks: list[int]) -> None:
        """Raise unless each of these blocks can have one reference more."""
        with self._state:
            for block in blocks:
                if self._references[block] >= MAX_INT32:
                    raise RuntimeError(f"block {block} has too many references")

    def _take(self, blocks: list[int]) -> None:
        """Add a reference to each of these different, kept blocks, in use or not. The caller holds the lock."""
        self._check_room(blocks)
        with self._state:
            for block in blocks:
                self._kept.pop(block, None)
            self._references.update(blocks)

    def _forget(self, block: int, generation: int) -> None:
        """No longer keep it; a free one joins the end of the free list. Nothing where it is not held any more."""
        with self._state:
            if block in self._keeping and self._generations[block] == generation:
                self._keeping.discard(block)
                if block in self._kept:
                    del self._kept[block]
                    self._free.append(block)

    def _count_free(self) -> int:
        return len(self._free) + len(self._kept)

    def _can_allocate(self, count: int) -> Allocation:
        if count >= self._num_blocks:
            return Allocation.NEVER
        return Allocation.OK if count <= self._count_free() else Allocation.LATER

    def _check_used(self, block: int, references: int) -> None:
        if not 1 <= block < self._num_blocks:
            raise ValueError(f"block {block} does not exist: ids are 1 to {self._num_blocks - 1}")
        held = self._references.get(block, 0)
        if held == 0:
            raise ValueError(f"block {block} is not in use")
        if references > held:
            raise ValueError(f"block {block} is listed {references} times and has {held} references")


def encode_compressed(ids: NDArray[np.int32], table: NDArray[np.int32], sentinel: SupportsIndex) -> NDArray[np.int32]:
    """`table[id]` for each id, `sentinel` for an id outside the table (negative ones too).

    Args:
        ids: int32 [n]; table: int32 [m]; no other dtype is converted. sentinel: fits 32 bits.

    Returns: a new int32 array [n].
    """
    import numpy as np  # here: the package imports without numpy

    for name, array in (("ids", ids), ("table", table)):
        if not isinstance(array, np.ndarray) or array.dtype != np.int32:
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise TypeError(f"{name} must be a numpy array of int32, not {kind}")
    value = as_integer(sentinel, "sentinel")
    if not -MAX_INT32 - 1 <= value <= MAX_INT32:
        raise ValueError(f"sentinel must fit 32 bits, not {value}")
    if ids.ndim != 1 or table.ndim != 1:
        raise ValueError(f"ids and table must have one dimension, not {ids.ndim} and {table.ndim}")
    encoded = np.full(ids.shape, value, dtype=np.int32)
    known = (ids >= 0) & (ids < len(table))
    encoded[known] = table[ids[known]]
    return encoded
