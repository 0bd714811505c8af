"""The block tables of running sequences, kept on the host from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer.model.batch import RowSpec

NO_BLOCK = -1
"""Stands in a block table where a sequence has no block: nothing is read or written there."""
PADDING_SLOT = 0
"""The state slot of sequences that only fill a fixed shape; their blocks are block 0."""


def tables_of(rows: Sequence[RowSpec], columns: int) -> NDArray[np.int32]:
    """The rows' blocks, made anew: int32 [rows, columns], NO_BLOCK behind the last of each."""
    tables = np.full((len(rows), columns), NO_BLOCK, dtype=np.int32)
    for index, row in enumerate(rows):
        own = row.blocks[:columns]
        tables[index, : len(own)] = own
    return tables


class BlockTables:
    """A row for every state slot, of which a step writes what was added since the one before.

    The blocks of a sequence must be the same object from step to step, and only be added to, while it holds its slot:
    an engine's list of them is. When it is preempted, cancelled or done, the slot goes to others with another list,
    which is written whole. Lists are told apart by identity, and the last one of each slot is held here, so that no
    other can take its place in memory.
    """

    def __init__(self) -> None:
        self._table = np.full((1, 1), NO_BLOCK, dtype=np.int32)
        self._known: list[Sequence[int]] = [()]
        self._lengths = [0]

    def of(self, rows: Sequence[RowSpec], columns: int) -> NDArray[np.int32]:
        """The same as `tables_of`, a copy. Sequences of padding, which share a slot, are written anew each time."""
        slots = [row.slot for row in rows]
        self._hold(max(slots) + 1, max(columns, *(len(row.blocks) for row in rows)))
        for slot, row in zip(slots, rows, strict=True):
            if self._known[slot] is not row.blocks or self._lengths[slot] != len(row.blocks):
                self._write(slot, row.blocks)
        found = self._table[slots, :columns]
        for index, slot in enumerate(slots):
            if slot == PADDING_SLOT:
                found[index] = tables_of([rows[index]], columns)
        return found

    def _write(self, slot: int, blocks: Sequence[int]) -> None:
        written = self._lengths[slot] if self._known[slot] is blocks else 0
        if written > len(blocks):
            written = 0
        self._table[slot, written : len(blocks)] = blocks[written:]
        if not written:
            self._table[slot, len(blocks) :] = NO_BLOCK
        self._known[slot], self._lengths[slot] = blocks, len(blocks)

    def _hold(self, slots: int, columns: int) -> None:
        """Make room for so many slots and columns; each time it is needed, for twice as many as there are."""
        had, width = self._table.shape
        if slots <= had and columns <= width:
            return
        shape = (had if slots <= had else max(slots, 2 * had), width if columns <= width else max(columns, 2 * width))
        grown = np.full(shape, NO_BLOCK, dtype=np.int32)
        grown[:had, :width] = self._table
        self._table = grown
        self._known += [()] * (shape[0] - had)
        self._lengths += [0] * (shape[0] - had)
