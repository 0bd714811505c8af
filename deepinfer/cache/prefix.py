"""Prefixes that were computed before: what makes two of them the same, and where their blocks and state are.

A request may start behind any multiple of 128 tokens for which three things are known: every block before it, a
snapshot of the whole state slot taken there, and that both were computed from the same beginning. docs/prefix-reuse.md
is the contract in full; in short:

- `Context.root` is the hash of everything that changes a result beside the tokens; `block_hashes` chains it through
  the tokens, so that a block's hash stands for all that came before it.
- `PrefixCache` maps these hashes to blocks and slots. It owns neither: what it knows is free once its users have
  dropped it, and stays findable until its manager hands it out again, the longest unused first.
- `reusable_tokens` says how far a request may reuse at all.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from deepinfer import native
from deepinfer.config.constraints import BLOCK_TOKENS

if TYPE_CHECKING:
    from deepinfer._python.engine import BlockManager

Truncation = Literal["off", "mask", "compact"]
_CONTRACT = "deepinfer-prefix-1"


@dataclass(frozen=True)
class Context:
    """What a cached result depends on beside the tokens before it.

    Args:
        model: identity of the weights, such as a digest of the checkpoint's index, or its path for one process.
        cache_format: of blocks and slots, such as "main=288 index=68 ring=134x528".
        truncation, keep_tokens: model_spec 3.8; keep_tokens counts only where truncation is on.
        settings: everything else that may change a bit, as the backend and kernels that fall back.
        salt: the caller's; requests of different salts never share anything.
    """

    model: str
    cache_format: str
    truncation: Truncation = "off"
    keep_tokens: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    salt: str = ""

    def root(self) -> bytes:
        """The hash before a sequence's first block: 32 bytes.

        BLAKE2b over names and values, each as UTF-8 behind its length (uint64, little-endian).
        """
        kept = str(self.keep_tokens) if self.truncation != "off" else ""
        fields = {
            "contract": _CONTRACT,
            "model": self.model,
            "cache_format": self.cache_format,
            "truncation": self.truncation,
            "keep_tokens": kept,
            **{f"settings.{name}": value for name, value in sorted(self.settings.items())},
            "salt": self.salt,
        }
        digest = hashlib.blake2b(digest_size=native.engine.HASH_BYTES, person=b"deepinfer-root")
        for text in (part for item in fields.items() for part in item):
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.digest()


@dataclass(frozen=True)
class Image:
    """An image in a prompt: position of its first token, and a digest of what the encoder is given."""

    position: int
    digest: bytes


def block_hashes(
    token_ids: Sequence[int], root: bytes, *, images: Sequence[Image] = (), known: Sequence[bytes] = ()
) -> list[bytes]:
    """The hash of every whole block of a sequence; a sequence of fewer than 128 tokens has none.

    Args:
        token_ids: all of the sequence's tokens so far.
        root: `Context.root()`.
        images: in the order of their positions; an image counts from the block on in which it begins.
        known: hashes of the first blocks from an earlier call for the same sequence; they are not computed again.

    Raises:
        ValueError: an id does not fit 32 bits, or images lie outside the tokens or out of order.
    """
    begin = len(known) * BLOCK_TOKENS
    try:
        ids = array("i", token_ids[begin:])
    except OverflowError as problem:
        raise ValueError("token_ids must fit 32 bits") from problem
    positions = [image.position for image in images]
    if positions != sorted(positions) or not all(0 <= one < len(token_ids) for one in positions):
        raise ValueError(f"images must lie within the {len(token_ids)} tokens, in order, and begin at {positions}")
    marks = [(image.position - begin, image.digest) for image in images if image.position >= begin]
    return [*known, *native.engine.hash_blocks(ids, known[-1] if known else root, marks)]


def reusable_tokens(total: int, truncation: Truncation = "off", keep_tokens: int = 0) -> int:
    """How many of a sequence's `total` tokens may come from a prefix: a multiple of 128.

    At least one token is left to compute, whose logits are wanted. With truncation on, the last `keep_tokens` are too:
    the consumers' windows hold only kept tokens, and which those are depends on the total (model_spec 3.8). A snapshot
    of another total is exact up to there, and no further.
    """
    left = max(keep_tokens, 1) if truncation != "off" else 1
    return max(total - left, 0) // BLOCK_TOKENS * BLOCK_TOKENS


@dataclass(frozen=True)
class Match:
    """A prefix that is known: its tokens, its blocks in order, and the slot that holds the state behind them.

    The finder holds a reference to each block and to the slot. tokens 0, no blocks and slot 0: nothing is known.
    """

    tokens: int = 0
    blocks: tuple[int, ...] = ()
    snapshot_slot: int = 0


class PrefixCache:
    """What is known of prefixes, over the managers of a cache's blocks and of its state slots.

    How a scheduler uses it::

        match = prefixes.match(hashes, limit=reusable_tokens(len(tokens)))
        slot, = slots.allocate_nolock(1)                        # if blocks and slots suffice, else release(match)
        if match.tokens:
            caches.copy_slots([match.snapshot_slot], [slot])    # before the sequence's first forward
            prefixes.release_snapshot(match)                    # at once: work on a device runs in order
        table = [*match.blocks, *blocks.allocate_nolock(...)]
        ...                                                     # after the forward that completed a block:
        prefixes.insert(hashes[i], table[i])                    # ... or with a snapshot, at tokens = 128 (i + 1):
        snapshot, = slots.allocate_nolock(1)                    #     (leave it where no slot is free)
        caches.copy_slots([slot], [snapshot])
        prefixes.insert(hashes[i], table[i], snapshot)
        slots.unpin_blocks([snapshot])                          # free for others, and found until one takes it
        ...
        blocks.unpin_blocks(table); slots.unpin_blocks([slot])  # at the end: everything is free, and what is known
                                                                # stays known until it is handed out again
    """

    def __init__(self, blocks: BlockManager, slots: BlockManager) -> None:
        self._blocks, self._slots = blocks, slots
        self._index = native.engine.PrefixIndex(blocks, slots)

    def match(self, hashes: Sequence[bytes], *, limit: int | None = None) -> Match:
        """The longest known beginning of a sequence that ends with a snapshot, of at most `limit` tokens.

        Takes references: those to the blocks become the sequence's, which unpins them with its other blocks;
        `release_snapshot` drops the slot's once it was copied, `release` drops all. Takes both managers' locks.
        """
        most = len(hashes) if limit is None else min(len(hashes), max(limit, 0) // BLOCK_TOKENS)
        blocks, slot = self._index.match(hashes, most)
        return Match(len(blocks) * BLOCK_TOKENS, tuple(blocks), slot)

    def release_snapshot(self, match: Match) -> None:
        """Drop the reference to the slot."""
        if match.snapshot_slot:
            self._slots.unpin_blocks([match.snapshot_slot])

    def release(self, match: Match) -> None:
        """Drop all references of a match that is not used."""
        self.release_snapshot(match)
        self._blocks.unpin_blocks(match.blocks)

    def insert(self, hash: bytes, block: int, snapshot_slot: int | None = None) -> bool:
        """Make a whole block of a sequence known, and with `snapshot_slot` the state behind its last token.

        Both must be in use, and no reference is taken. Where another block is known by the hash that one stays (and
        gets the snapshot, if it has none). Returns whether `block` is the one that is known.

        Raises:
            TypeError, ValueError: an argument is not as said, or the block or slot is known by another hash.
        """
        known: bool = self._index.insert(hash, block, snapshot_slot or 0)
        return known

    def clear(self) -> None:
        """Know nothing any more, as after other weights were loaded."""
        self._index.clear()
