"""What a forward is given: rows of tokens, packed by sequence, and where their sequences' caches are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from deepinfer import native
from deepinfer.config import Engram
from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.model.transfer import to_device

NO_BLOCK = -1
"""Stands in a block table where a sequence has no block: nothing is read or written there."""
PADDING_SLOT = 0
"""The state slot of sequences that only fill a fixed shape; their blocks are block 0."""
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
    total: of a prefill, tokens that were known when it began, all chunks counted (for truncation, model_spec 3.8);
        None: those up to the last row.
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

    def ngrams(self, row: RowSpec) -> NDArray[np.int32]:
        """Of each row the compressed ids of its token and of those before, newest first: [count, length].

        `pad` stands before the start, and from the first token on that the vocabulary does not have.
        """
        first = max(row.start - self.length + 1, 0)
        ids = np.array(row.token_ids[first : row.start + row.count], dtype=np.int32)
        known = native.engine.encode_compressed(ids, self.table, _UNKNOWN)
        before = self.length - 1 - (row.start - first)
        padded = np.concatenate((np.full(before, self.pad, np.int32), known))
        grams = np.lib.stride_tricks.sliding_window_view(padded, self.length)[:, ::-1]
        grams = np.where(np.cumsum(grams == _UNKNOWN, axis=1) > 0, self.pad, grams)
        return grams.astype(np.int32)


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
    ) -> Batch:
        """From data of the host, by one copy to the device.

        vocabulary: `Model.vocabulary`; None for a model without engram. memories: by layer, tables on the host.

        Raises:
            ValueError: there are no rows, two sequences share a state slot, or a total is less than its rows' end.
        """
        if not rows:
            raise ValueError("a batch needs at least one sequence")
        slots = [row.slot for row in rows if row.slot != PADDING_SLOT]
        if len(set(slots)) < len(slots):
            raise ValueError(f"sequences of a batch must differ in their state slots: {slots}")
        totals = tuple(row.start + row.count if row.total is None or decode else row.total for row in rows)
        for row, total in zip(rows, totals, strict=True):
            if total < row.start + row.count:
                raise ValueError(f"total must count the rows too: {total} is less than {row.start + row.count}")
        counts = np.array([row.count for row in rows], dtype=np.int32)
        starts = np.array([row.start for row in rows], dtype=np.int32)
        ends = np.cumsum(counts, dtype=np.int32)
        columns = max(-(-(row.start + row.count) // BLOCK_TOKENS) for row in rows)
        tables = np.full((len(rows), columns), NO_BLOCK, dtype=np.int32)
        for index, row in enumerate(rows):
            own = row.blocks[:columns]
            tables[index, : len(own)] = own
        wanted = _wanted(rows, ends)
        arrays = {
            "token_ids": np.concatenate([_ints(row.token_ids[row.start : row.start + row.count]) for row in rows]),
            "positions": np.concatenate([np.arange(row.start, row.start + row.count, dtype=np.int32) for row in rows]),
            "sequences": np.repeat(np.arange(len(rows), dtype=np.int32), counts),
            "ngrams": (
                np.concatenate([vocabulary.ngrams(row) for row in rows])
                if vocabulary is not None
                else np.empty((int(ends[-1]), 0), dtype=np.int32)
            ),
            "slots": _ints([row.slot for row in rows]),
            "block_tables": tables,
            "query_lens": counts,
            "key_lens": starts + counts,
            "row_ends": ends,
            "padding": np.array([row.slot == PADDING_SLOT for row in rows]),
            "wanted": np.array(wanted, dtype=np.int64),
        }
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
            wanted_rows=tuple(wanted),
            decode=decode,
        )


def _ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _wanted(rows: Sequence[RowSpec], ends: NDArray[np.int32]) -> list[int]:
    found: list[int] = []
    for row, end in zip(rows, ends.tolist(), strict=True):
        if row.wanted == "last":
            found.append(end - 1)
        elif row.wanted == "all":
            found.extend(range(end - row.count, end))
    return found
