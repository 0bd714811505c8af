"""What a forward is given: rows of tokens, packed by sequence, and where their sequences' caches are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from deepinfer import native
from deepinfer.config import Engram
from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.model.block_tables import PADDING_SLOT, BlockTables, tables_of
from deepinfer.model.transfer import to_device

_UNKNOWN = -1


Fetch = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From n-grams int32 [n, length] to a memory's values e4m3 [n, k] and scales uint8 [n, k / 32], on the host."""


@dataclass(frozen=True)
class RowSpec:
    """The rows of one sequence in a forward.

    token_ids: all tokens of the sequence so far, at least up to the last row's.
    start, count: the rows are the tokens at the positions start to start + count - 1.
    slot: its state slot; 0: the rows only fill a fixed shape, and their logits mean nothing.
    blocks: its blocks, one for every 128 positions up to the last row's at least.
    total: of a prefill, the tokens of the prompt, all chunks counted, from whose end truncation counts (model_spec
        3.8); None: those up to the last row. Rows behind the prompt, which are prefilled where they would be decoded
        anew, see what they saw as decoded ones.
    wanted: the rows whose logits are wanted.
    """

    token_ids: Sequence[int]
    start: int
    count: int
    slot: int
    blocks: Sequence[int]
    total: int | None = None
    wanted: Literal["last", "all", "none"] = "last"

    def __post_init__(self) -> None:
        end = self.start + self.count
        if self.start < 0 or self.count < 1 or end > len(self.token_ids):
            raise ValueError(
                f"rows {self.start} to {end - 1} of a sequence of {len(self.token_ids)} tokens: "
                "there must be at least one, all of them tokens that are known"
            )
        if len(self.blocks) * BLOCK_TOKENS < end:
            raise ValueError(
                f"{len(self.blocks)} blocks do not hold {end} tokens: {-(-end // BLOCK_TOKENS)} are needed"
            )
        if self.total is not None and self.total < 1:
            raise ValueError(f"total must be the tokens of a prompt, at least one, not {self.total}")
        if self.wanted not in ("last", "all", "none"):
            raise ValueError(f"wanted must be last, all or none, not {self.wanted!r}")


@dataclass(frozen=True)
class Vocabulary:
    """Engram's compressed vocabulary on the host: table int32 [size], token id -> compressed id (model_spec 3.10).

    length: tokens of an n-gram. pad: the compressed id that stands where there is no token.
    """

    table: NDArray[np.int32]
    length: int
    pad: int

    @classmethod
    def of(cls, lookup: torch.Tensor, engram: Engram) -> Vocabulary:
        """From the tokenizer's lookup, int64 [size]."""
        table = lookup.cpu().numpy().astype(np.int32)
        return cls(table, engram.max_ngram, int(table[engram.pad_token]))

    def ngrams(
        self, tokens: NDArray[np.int32], places: NDArray[np.int32], positions: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Of rows the compressed ids of their tokens and of those before, newest first: int32 [n, length].

        `pad` stands before a sequence's start, and from the first token on that the vocabulary does not have.

        Args:
            tokens: int32 [m], ids; before each row's own those that it needs, as far as its sequence has them.
            places: int32 [n], where the rows' own tokens are among these.
            positions: int32 [n], how many tokens stand before each in its sequence.
        """
        known = native.engine.encode_compressed(tokens, self.table, _UNKNOWN)
        back = np.arange(self.length, dtype=np.int32)
        there = back <= positions[:, None]
        grams = known[np.where(there, places[:, None] - back, 0)]
        there &= grams != _UNKNOWN
        return np.where(np.logical_and.accumulate(there, axis=1), grams, np.int32(self.pad))


@dataclass(frozen=True)
class Batch:
    """Rows of one forward, n of s sequences, packed by sequence. Tensors are on the model's device.

    token_ids, positions: int32 [n]. sequences: int32 [n], which of the s. ngrams: int32 [n, length], [n, 0] for a
    model without engram. slots: int32 [s]. block_tables: int32 [s, m], -1 beyond a sequence's blocks.
    query_lens, key_lens: int32 [s], a sequence's rows, and its tokens up to the last of them. row_ends: int32 [s],
    the sums of query_lens up to each. padding: bool [s], sequences that only fill a fixed shape. wanted: int64 [w],
    the rows whose logits are wanted.
    fetched: by engram layer whose table is on the host, what its rows hold: e4m3 [n, k] and uint8 [n, k / 32].
    On the host: starts, counts, totals and state_slots by sequence, as in RowSpec; wanted_rows, the values of
    `wanted`; blocks, the sequences' blocks (of prefill; a decode step reads the tables on the device).
    decode: the window's keys are read where they lie in the rings, and a sequence has as many rows at most as a step
    may take back (model_spec 4.3). Otherwise the rows are chunks of prefill, of any length.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    sequences: torch.Tensor
    ngrams: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    query_lens: torch.Tensor
    key_lens: torch.Tensor
    row_ends: torch.Tensor
    padding: torch.Tensor
    wanted: torch.Tensor
    fetched: Mapping[int, tuple[torch.Tensor, torch.Tensor]]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    totals: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    state_slots: tuple[int, ...]
    wanted_rows: tuple[int, ...]
    decode: bool

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def of(
        cls,
        rows: Sequence[RowSpec],
        *,
        decode: bool,
        vocabulary: Vocabulary | None,
        device: torch.device | str = "cpu",
        memories: Mapping[int, Fetch] | None = None,
        tables: BlockTables | None = None,
    ) -> Batch:
        """From data of the host, by one copy to the device.

        vocabulary: `Model.vocabulary`; None for a model without engram. memories: by layer, n-gram tables on the host.
        tables: block tables kept from earlier batches, where the rows' blocks are as these want them.

        Raises:
            ValueError: there are no rows, or two sequences share a state slot.
        """
        _check(rows)
        totals = tuple(row.start + row.count if row.total is None or decode else row.total for row in rows)
        arrays = _arrays(rows, vocabulary, tables)
        memories = memories or {}
        for layer, fetch in memories.items():
            values, scales = fetch(torch.from_numpy(arrays["ngrams"]))
            arrays |= {f"values {layer}": values.view(torch.uint8).numpy(), f"scales {layer}": scales.numpy()}
        moved = to_device(arrays, torch.device(device))
        fetched = {
            layer: (moved.pop(f"values {layer}").view(torch.float8_e4m3fn), moved.pop(f"scales {layer}"))
            for layer in memories
        }
        return cls(
            **moved,
            fetched=fetched,
            starts=tuple(row.start for row in rows),
            counts=tuple(row.count for row in rows),
            totals=totals,
            blocks=() if decode else tuple(tuple(row.blocks) for row in rows),
            state_slots=tuple(row.slot for row in rows),
            wanted_rows=tuple(arrays["wanted"].tolist()),
            decode=decode,
        )


def _check(rows: Sequence[RowSpec]) -> None:
    if not rows:
        raise ValueError("a batch needs at least one sequence")
    held = [row.slot for row in rows if row.slot != PADDING_SLOT]
    if len(set(held)) < len(held):
        raise ValueError(f"sequences of a batch must differ in their state slots: {held}")


def _arrays(
    rows: Sequence[RowSpec], vocabulary: Vocabulary | None, tables: BlockTables | None
) -> dict[str, NDArray[Any]]:
    """The fields of a batch that are tensors. No step here is taken row by row but for lists that Python has."""
    counts, starts = _ints([row.count for row in rows]), _ints([row.start for row in rows])
    ends = np.cumsum(counts, dtype=np.int32)
    positions = np.arange(ends[-1], dtype=np.int32) + np.repeat(starts + counts - ends, counts)
    tokens, places = _tokens(rows, starts, counts, 0 if vocabulary is None else vocabulary.length - 1)
    no_grams = np.empty((len(positions), 0), dtype=np.int32)
    columns = -(-int((starts + counts).max()) // BLOCK_TOKENS)
    slots = _ints([row.slot for row in rows])
    return {
        "token_ids": tokens[places],
        "positions": positions,
        "sequences": np.repeat(np.arange(len(rows), dtype=np.int32), counts),
        "ngrams": no_grams if vocabulary is None else vocabulary.ngrams(tokens, places, positions),
        "slots": slots,
        "block_tables": tables_of(rows, columns) if tables is None else tables.of(rows, columns),
        "query_lens": counts,
        "key_lens": starts + counts,
        "row_ends": ends,
        "padding": slots == PADDING_SLOT,
        "wanted": np.array(_wanted(rows, ends), dtype=np.int64),
    }


def _ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _tokens(
    rows: Sequence[RowSpec], starts: NDArray[np.int32], counts: NDArray[np.int32], before: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The rows' tokens, with up to `before` that stand before each sequence's first, and the rows' places there."""
    found: list[int] = []
    for row in rows:
        found += row.token_ids[max(row.start - before, 0) : row.start + row.count]
    leading = np.cumsum(np.minimum(starts, before), dtype=np.int32)
    return _ints(found), np.arange(counts.sum(), dtype=np.int32) + np.repeat(leading, counts)


def _wanted(rows: Sequence[RowSpec], ends: NDArray[np.int32]) -> list[int]:
    found: list[int] = []
    for row, end in zip(rows, ends.tolist(), strict=True):
        if row.wanted == "last":
            found.append(end - 1)
        elif row.wanted == "all":
            found.extend(range(end - row.count, end))
    return found
