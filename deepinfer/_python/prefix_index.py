"""Hashes of blocks of tokens, and what is known under them; part of `engine`."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex

from deepinfer._python.integers import as_integer

if TYPE_CHECKING:
    from deepinfer._python.engine import BlockManager

BLOCK_TOKENS: Final = 128
HASH_BYTES: Final = 32
_PERSON: Final = b"deepinfer-prefix"


def hash_blocks(token_ids: Any, parent: bytes, marks: Iterable[tuple[SupportsIndex, bytes]] = ()) -> list[bytes]:
    """The chained hash of every whole block of 128 tokens; what is left over has none.

    hash = BLAKE2b of 32 bytes, personalised "deepinfer-prefix", of: the hash before it (32 bytes), the block's ids
    (int32, little-endian), and for each mark in it, in order, its place in the block (uint32, little-endian), its
    length (uint32, little-endian) and its bytes.

    Args:
        token_ids: int32 [n], contiguous: an array.array("i"), a numpy array, or another buffer of that format.
        parent: the hash before the first block, 32 bytes.
        marks: (index into token_ids, bytes): what else the tokens from there on depend on; ascending indices.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    ids = _as_ids(token_ids)
    digest = _as_hash(parent, "parent")
    marked: dict[int, bytearray] = {}
    last = 0
    for mark in marks:
        if not isinstance(mark, tuple) or len(mark) != 2:
            raise TypeError("a mark must be a pair of an index and bytes")
        where, content = mark
        index = as_integer(where, "a mark's index")
        if not last <= index < len(ids):
            raise ValueError(f"a mark's index must be {last} to {len(ids) - 1}, not {index}")
        if not isinstance(content, bytes):
            raise TypeError(f"a mark's content must be bytes, not {type(content).__name__}")
        last = index
        note = marked.setdefault(index // BLOCK_TOKENS, bytearray())
        note += (index % BLOCK_TOKENS).to_bytes(4, "little") + len(content).to_bytes(4, "little") + content
    hashes = []
    for block in range(len(ids) // BLOCK_TOKENS):
        content = ids[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS].tobytes()
        message = b"".join((digest, content, marked.get(block, b"")))
        digest = hashlib.blake2b(message, digest_size=HASH_BYTES, person=_PERSON).digest()
        hashes.append(digest)
    return hashes


def _as_ids(token_ids: object) -> memoryview[int]:
    try:
        view = memoryview(token_ids)  # type: ignore[arg-type]
    except TypeError as problem:
        raise TypeError(f"token_ids must be a buffer of int32, not {type(token_ids).__name__}") from problem
    if view.format not in ("i", "=i", "<i", "@i") or view.itemsize != 4:
        raise TypeError(f"token_ids must be a buffer of int32, not of the format {view.format}")
    if view.ndim != 1 or not view.c_contiguous:
        raise ValueError("token_ids must have one dimension and be contiguous")
    assert sys.byteorder == "little"  # the machines that this runs on
    return view


def _as_hash(value: object, name: str) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{name} must be bytes, not {type(value).__name__}")
    if len(value) != HASH_BYTES:
        raise ValueError(f"{name} must have {HASH_BYTES} bytes, not {len(value)}")
    return value


@dataclass
class _Node:
    """One hash: its block, perhaps a snapshot's slot (0: none), and the generations in which they were kept."""

    block: int
    generation: int
    slot: int = 0
    slot_generation: int = 0


class PrefixIndex:
    """Which block holds the tokens of a hash, and which slot the state behind them.

    It owns no reference: a block or slot that it knows is free once its users have dropped it, and is forgotten when
    its manager hands it out again, which the managers do last, and longest unused first. `match` takes references.

    Args:
        blocks, slots: the managers of the cache's blocks and of the state slots; two different ones.

    `match` and `insert` take both managers' locks, the slots' first. Errors as BlockManager's; a call that raises has
    changed nothing.
    """

    def __init__(self, blocks: BlockManager, slots: BlockManager) -> None:
        if blocks is slots:
            raise ValueError("blocks and slots must have a manager each")
        self._blocks, self._slots = blocks, slots
        self._nodes: dict[bytes, _Node] = {}
        self._hash_of_block: dict[int, bytes] = {}
        self._hash_of_slot: dict[int, bytes] = {}

    def match(self, hashes: Iterable[bytes], max_blocks: SupportsIndex) -> tuple[list[int], int]:
        """Blocks of the longest beginning, at most `max_blocks` long, that is known whole and ends with a snapshot.

        Takes a reference to each of the blocks and to the snapshot's slot. Returns both, or ([], 0).
        """
        wanted = [_as_hash(one, "a hash") for one in hashes]
        limit = as_integer(max_blocks, "max_blocks")
        if limit < 0:
            raise ValueError(f"max_blocks must not be negative, not {limit}")
        with self._locked():
            blocks: list[int] = []
            length = slot = 0
            for one in wanted[:limit]:
                node = self._find(one)
                if node is None:
                    break
                blocks.append(node.block)
                if node.slot:
                    length, slot = len(blocks), node.slot
            if slot:
                self._slots._check_room([slot])
                self._blocks._take(blocks[:length])
                self._slots._take([slot])
            return blocks[:length], slot

    def insert(self, hash: bytes, block: SupportsIndex, slot: SupportsIndex = 0) -> bool:
        """Know a block in use by its hash, and with `slot` (not 0), a slot in use that holds the state behind it.

        Where another block is known by this hash, that one stays; it may get the slot. Returns whether this block is
        the one that is known.
        """
        key = _as_hash(hash, "hash")
        place, snapshot = as_integer(block, "block"), as_integer(slot, "slot")
        with self._locked():
            self._blocks._check_in_use(place)
            if self._key_of(place, self._hash_of_block) not in (None, key):
                raise ValueError(f"block {place} is known by another hash")
            if snapshot:
                self._slots._check_in_use(snapshot)
                if self._key_of(snapshot, self._hash_of_slot) not in (None, key):
                    raise ValueError(f"slot {snapshot} is known by another hash")
            node = self._find(key)
            if node is None:
                node = self._nodes[key] = _Node(place, self._blocks._keep(place))
                self._hash_of_block[place] = key
            if snapshot and not node.slot:
                node.slot, node.slot_generation = snapshot, self._slots._keep(snapshot)
                self._hash_of_slot[snapshot] = key
            return node.block == place

    def clear(self) -> None:
        """Know nothing any more; what is free stays free, in the order of its blocks, and what is in use in use."""
        with self._locked():
            for node in sorted(self._nodes.values(), key=lambda node: (node.block, node.generation)):
                self._blocks._forget(node.block, node.generation)
                self._slots._forget(node.slot, node.slot_generation)
            self._nodes.clear()
            self._hash_of_block.clear()
            self._hash_of_slot.clear()

    def _find(self, key: bytes) -> _Node | None:
        """The node of a hash, after what its managers handed out again has been struck off."""
        node = self._nodes.get(key)
        if node is None:
            return None
        if node.slot and not self._slots._holds(node.slot, node.slot_generation):
            self._unlink(node.slot, key, self._hash_of_slot)
            node.slot = 0
        if self._blocks._holds(node.block, node.generation):
            return node
        if node.slot:
            self._slots._forget(node.slot, node.slot_generation)
            self._unlink(node.slot, key, self._hash_of_slot)
        self._unlink(node.block, key, self._hash_of_block)
        del self._nodes[key]
        return None

    def _key_of(self, place: int, hashes: dict[int, bytes]) -> bytes | None:
        """The hash by which a block or slot is known now."""
        key = hashes.get(place)
        if key is not None:
            self._find(key)
        return hashes.get(place)

    @staticmethod
    def _unlink(place: int, key: bytes, hashes: dict[int, bytes]) -> None:
        if hashes.get(place) == key:
            del hashes[place]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._slots._locked(), self._blocks._locked():
            yield

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot copy or pickle a PrefixIndex: its managers cannot be")
