"""Block accounting and token-id encoding, as `deepinfer._C.engine` has them."""

from __future__ import annotations

import contextlib
import enum
import operator
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn, SupportsIndex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOCK_TIMEOUT_S: Final = 20.0
_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


class Allocation(enum.Enum):
    """Whether a request for blocks can be met: now, after others were freed, or not by this manager at all."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


def _as_integer(value: SupportsIndex, name: str) -> int:
    try:
        index = int(operator.index(value))
    except TypeError as problem:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from problem
    if not -_MAX_INT64 - 1 <= index <= _MAX_INT64:
        raise ValueError(f"{name} does not fit 64 bits")
    return index


class BlockManager:
    """Paged-cache blocks 1 .. num_blocks-1, handed out first in, first out; block 0 is reserved for padding.

    `lock`/`unlock` is the long lock, held by a caller over several operations and owned by a thread. A second,
    inner one guards the fields for one operation, so that a caller that forgot the first corrupts nothing.

    Args:
        num_blocks: 1 to 2^31-1, the reserved block included.
        lock_timeout_s: how long `lock`, and what takes the lock, waits before RuntimeError.

    Errors: TypeError and ValueError for arguments that cannot be right, RuntimeError for a state that forbids it;
    a call that raises has changed nothing.
    """

    def __init__(self, num_blocks: SupportsIndex, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        count = _as_integer(num_blocks, "num_blocks")
        if not 1 <= count <= _MAX_INT32:
            raise ValueError(f"num_blocks must be between 1 and 2147483647 (block 0 is reserved), not {count}")
        if not 0 < lock_timeout_s <= 86400:
            raise ValueError(f"lock_timeout_s must be above 0 and at most 86400 seconds, not {lock_timeout_s:g}")
        self._num_blocks = count
        self._free = deque(range(1, count))
        self._references: Counter[int] = Counter()
        self._state = threading.Lock()
        self._lock_timeout_s = lock_timeout_s
        self._lock_changed = threading.Condition(threading.Lock())
        self._owner: int | None = None

    def allocate_nolock(self, num_blocks: SupportsIndex) -> list[int]:
        """Take blocks from the front of the free list, each with one reference. The caller holds the lock."""
        count = _as_integer(num_blocks, "num_blocks")
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
                    raise RuntimeError(f"cannot allocate {count} blocks: {len(self._free)} are free")
            blocks = [self._free.popleft() for _ in range(count)]
            self._references.update(blocks)
        return blocks

    def pin_blocks(self, block_ids: Iterable[SupportsIndex]) -> None:
        """Add a reference to each block in use, once for every time it is listed. Takes the lock."""
        ids = [_as_integer(block, "a block id") for block in block_ids]
        with self._locked(), self._state:
            for block, added in Counter(ids).items():
                self._check_used(block, 1)
                if self._references[block] + added > _MAX_INT32:
                    raise RuntimeError(f"block {block} has too many references")
            self._references.update(ids)

    def unpin_blocks(self, block_ids: Iterable[SupportsIndex]) -> None:
        """Drop a reference of each block, back to front; those that reach zero join the end of the free list.

        Takes the lock.
        """
        ids = [_as_integer(block, "a block id") for block in block_ids]
        with self._locked(), self._state:
            dropped: Counter[int] = Counter()
            for block in ids:
                dropped[block] += 1
                self._check_used(block, dropped[block])
            for block in reversed(ids):
                self._references[block] -= 1
                if self._references[block] == 0:
                    del self._references[block]
                    self._free.append(block)

    def reset(self) -> None:
        """Restore the initial order 1, 2, ...; legal only while every block is free. Takes the lock."""
        with self._locked(), self._state:
            used = self._num_blocks - 1 - len(self._free)
            if used:
                raise RuntimeError(f"cannot reset: {used} blocks are in use")
            self._free = deque(range(1, self._num_blocks))

    def get_num_free_blocks(self) -> int:
        """How many blocks are free."""
        with self._state:
            return len(self._free)

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

    def _can_allocate(self, count: int) -> Allocation:
        if count >= self._num_blocks:
            return Allocation.NEVER
        return Allocation.OK if count <= len(self._free) else Allocation.LATER

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
    value = _as_integer(sentinel, "sentinel")
    if not -_MAX_INT32 - 1 <= value <= _MAX_INT32:
        raise ValueError(f"sentinel must fit 32 bits, not {value}")
    if ids.ndim != 1 or table.ndim != 1:
        raise ValueError(f"ids and table must have one dimension, not {ids.ndim} and {table.ndim}")
    encoded = np.full(ids.shape, value, dtype=np.int32)
    known = (ids >= 0) & (ids < len(table))
    encoded[known] = table[ids[known]]
    return encoded
