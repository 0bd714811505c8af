"""Where the rows of a prefill find their keys, worked out on the host (model_spec 3.7, 3.8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.model.batch import Batch
from deepinfer.model.transfer import to_device

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Entries:
    """Compressed entries of one ratio that a prefill makes and reads.

    positions, places: int32 [c], of the rows that it makes: each sequence's new entries, or one row that is none.
    mapping: int32 [c], the rows' sequences. row_begins: int32 [s + 1], where the sequences' rows begin.
    segments: int32 [k, 4], (block, first, end, row): how the entries of all sequences lie one after another.
    total: how many there are.
    """

    positions: torch.Tensor
    places: torch.Tensor
    mapping: torch.Tensor
    row_begins: torch.Tensor
    segments: torch.Tensor
    total: int


@dataclass(frozen=True)
class Rows:
    """Rows that run through layers together, and the keys that they see.

    kept: int64 [n], which rows of the batch these are; None: all of them. wanted: int64 [w], where the batch's wanted
    rows are among them. positions: int32 [n].
    history: keys that come from the rings; segments: int32 [k, 4], (slot, first, end, row): what they are.
    pivots: int32 [n, 4]: begin and length of a row's window in the history, and in the rows that follow it.
    ring_places: int32 [n], where a row's own key is stored; -1: nowhere.
    starts, lengths: by ratio, int32 [n]: where the entries of the row's sequence begin, and how many it sees.
    longest: by ratio, the largest of the lengths.
    """

    kept: torch.Tensor | None
    wanted: torch.Tensor
    positions: torch.Tensor
    history: int
    segments: torch.Tensor
    pivots: torch.Tensor
    ring_places: torch.Tensor
    starts: dict[int, torch.Tensor]
    lengths: dict[int, torch.Tensor]
    longest: dict[int, int]


@dataclass(frozen=True)
class Plan:
    """producers: the rows of the layers below the first of ratio 1. consumers: of the others; the same object where
    nothing is truncated. entries: by ratio. query_begins, key_begins: int32 [s + 1].
    """

    producers: Rows
    consumers: Rows
    entries: dict[int, Entries]
    query_begins: torch.Tensor
    key_begins: torch.Tensor


def plan(
    batch: Batch,
    *,
    ratios: Iterable[int],
    window: int,
    ring_rows: int,
    keep_tokens: int | None,
    compact: bool,
) -> Plan:
    """The plan of a batch.

    Args:
        ratios: the compression ratios, 1 and 2, that layers have.
        window: keys of the sliding window. ring_rows: rows of a ring.
        keep_tokens: how many tokens of the end the consumers' windows reach back to; None: all.
        compact: the consumers get these tokens' rows only.

    Raises:
        ValueError: rows are wanted that the consumers do not get.
    """
    host = _Host(batch, tuple(ratios), window, ring_rows)
    arrays: dict[str, NDArray[Any]] = {"query_begins": host.query_begins, "key_begins": _begins(host.ends)}
    everything = host.rows([0] * len(batch.starts), compact=False)
    truncated = everything
    if keep_tokens is not None:
        truncated = host.rows([total - keep_tokens for total in batch.totals], compact=compact)
    sides = {"producers": everything, "consumers": truncated} if truncated is not everything else {"both": everything}
    entries = {ratio: host.entries(ratio) for ratio in host.ratios}
    for name, side in sides.items():
        arrays |= {f"{name} {key}": value for key, value in side.arrays.items()}
    for ratio, made in entries.items():
        arrays |= {f"{ratio} {key}": value for key, value in made.arrays.items()}
    moved = to_device(arrays, batch.token_ids.device)

    def of(name: str) -> dict[str, torch.Tensor]:
        return {key.removeprefix(f"{name} "): value for key, value in moved.items() if key.startswith(f"{name} ")}

    found = {name: side.on_device(of(name), host.ratios) for name, side in sides.items()}
    producers, consumers = (found.get(name) or found["both"] for name in ("producers", "consumers"))
    read = {ratio: Entries(**of(str(ratio)), total=made.total) for ratio, made in entries.items()}
    return Plan(producers, consumers, read, moved["query_begins"], moved["key_begins"])


def _begins(counts: Iterable[int]) -> Ints:
    """0, and the sums of the counts up to each."""
    return np.concatenate(([0], np.cumsum(list(counts)))).astype(np.int32)


def _joined(parts: Iterable[NDArray[Any]]) -> Ints:
    return np.concatenate(list(parts)).astype(np.int32)


@dataclass(frozen=True)
class _Entries:
    arrays: dict[str, Ints]
    total: int


@dataclass(frozen=True)
class _Rows:
    arrays: dict[str, NDArray[Any]]
    history: int
    longest: dict[int, int]

    def on_device(self, moved: dict[str, torch.Tensor], ratios: tuple[int, ...]) -> Rows:
        starts = {ratio: moved.pop(f"starts {ratio}") for ratio in ratios}
        lengths = {ratio: moved.pop(f"lengths {ratio}") for ratio in ratios}
        kept = moved.pop("kept", None)
        return Rows(kept, history=self.history, starts=starts, lengths=lengths, longest=self.longest, **moved)


class _Host:
    def __init__(self, batch: Batch, ratios: tuple[int, ...], window: int, ring_rows: int) -> None:
        self.batch, self.ratios, self.window, self.ring_rows = batch, ratios, window, ring_rows
        self.ends = [start + count for start, count in zip(batch.starts, batch.counts, strict=True)]
        self.query_begins = _begins(batch.counts)

    def sequences(self) -> Iterator[tuple[int, int, int]]:
        """(index, start, end) of each."""
        return (
            (index, start, end) for index, (start, end) in enumerate(zip(self.batch.starts, self.ends, strict=True))
        )

    def entries(self, ratio: int) -> _Entries:
        positions, places, counts = [], [], []
        segments: list[NDArray[Any]] = []
        size = BLOCK_TOKENS // ratio
        totals = [end // ratio for end in self.ends]
        begins = _begins(totals).tolist()
        for index, start, end in self.sequences():
            blocks = np.array(self.batch.blocks[index], dtype=np.int64)
            made = np.arange(start // ratio, end // ratio)
            counts.append(max(1, len(made)))
            positions.append(made * ratio if len(made) else [0])
            places.append(blocks[made // size] * size + made % size if len(made) else [-1])
            first = np.arange(0, totals[index], size)
            last = np.minimum(size, totals[index] - first)
            own = (blocks[: len(first)], np.zeros_like(first), last, begins[index] + first)
            segments.append(np.stack(own, -1))
        arrays = {
            "positions": _joined(map(np.asarray, positions)),
            "places": _joined(map(np.asarray, places)),
            "mapping": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
            "row_begins": _begins(counts),
            "segments": _joined(segments),
        }
        return _Entries(arrays, begins[-1])

    def rows(self, floors: list[int], *, compact: bool) -> _Rows:
        """floors: the first position of each sequence that a window may reach."""
        parts: dict[str, list[NDArray[Any]]] = {"positions": [], "ring_places": [], "kept": []}
        windows: list[tuple[int, NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        segments: list[tuple[int, int, int, int]] = []
        history = 0
        for index, start, end in self.sequences():
            floor = max(floors[index], 0)
            first = min(max(start, floor), end - 1) if compact else start
            position = np.arange(first, end)
            low = np.maximum(position - self.window + 1, floor)
            oldest = min(max(start - self.window + 1, floor), start)
            segments += self._history(index, oldest, start, history)
            in_history = np.stack((history + low - oldest, np.maximum(np.minimum(start, position + 1) - low, 0)), -1)
            own_low = np.maximum(low, first)
            windows.append((sum(map(len, parts["positions"])), in_history, own_low - first, position + 1 - own_low))
            history += start - oldest
            stored = (position >= end - self.ring_rows) & ((position >= floor) | (not compact))
            ring = self.batch.state_slots[index] * self.ring_rows + position % self.ring_rows
            parts["ring_places"].append(np.where(stored, ring, -1))
            parts["positions"].append(position)
            parts["kept"].append(int(self.query_begins[index]) + position - start)
        pivots = [
            np.concatenate((in_history, np.stack((history + base + begin, np.maximum(length, 0)), -1)), -1)
            for base, in_history, begin, length in windows
        ]
        arrays: dict[str, NDArray[Any]] = {
            "positions": _joined(parts["positions"]),
            "ring_places": _joined(parts["ring_places"]),
            "pivots": _joined(pivots),
            "segments": np.array(segments, dtype=np.int32).reshape(-1, 4),
        }
        kept = np.concatenate(parts["kept"])
        if compact:
            arrays["kept"] = kept.astype(np.int64)
        arrays["wanted"] = self._wanted(kept)
        counts = [len(one) for one in parts["positions"]]
        longest = {}
        for ratio in self.ratios:
            begins = _begins(end // ratio for end in self.ends)[:-1]
            arrays[f"starts {ratio}"] = np.repeat(begins, counts).astype(np.int32)
            arrays[f"lengths {ratio}"] = ((arrays["positions"] + 1) // ratio).astype(np.int32)
            longest[ratio] = max(end // ratio for end in self.ends)
        return _Rows(arrays, history, longest)

    def _wanted(self, kept: NDArray[Any]) -> NDArray[np.int64]:
        """Where the batch's wanted rows are in kept, which ascends."""
        wanted = np.array(self.batch.wanted_rows, dtype=np.int64)
        found = np.searchsorted(kept, wanted)
        lost = int((kept[np.minimum(found, len(kept) - 1)] != wanted).sum())
        if lost:
            raise ValueError(
                f"the logits of {lost} rows are wanted that compact truncation leaves out: "
                "it has those of the last tokens of a prompt alone"
            )
        return found.astype(np.int64)

    def _history(self, index: int, oldest: int, start: int, row: int) -> Iterator[tuple[int, int, int, int]]:
        """The positions oldest to start - 1 as they lie in the sequence's ring: up to two runs."""
        slot, ring = self.batch.state_slots[index], self.ring_rows
        while oldest < start:
            place = oldest % ring
            count = min(start - oldest, ring - place)
            yield slot, place, place + count, row
            oldest, row = oldest + count, row + count
