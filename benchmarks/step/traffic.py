"""Bytes and operations of a call, and how they are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Floor:
    """bytes: read from memory or written to it. operations: multiplications and additions of matrix products."""

    bytes: int
    operations: int = 0

    def __add__(self, other: Floor) -> Floor:
        return Floor(self.bytes + other.bytes, self.operations + other.operations)

    def seconds(self, bytes_per_second: float, operations_per_second: float) -> float:
        """The longer of the two at such speeds."""
        return max(self.bytes / bytes_per_second, self.operations / operations_per_second)


def size(*values: Any) -> int:
    """Bytes of the elements of all tensors, of the same one once."""
    found = {(one.data_ptr(), one.numel(), one.dtype): bytes_of(one) for one in values if isinstance(one, torch.Tensor)}
    return sum(found.values())


def bytes_of(one: torch.Tensor | None) -> int:
    """Bytes of all elements of a tensor; 0 where there is none."""
    return 0 if one is None else one.numel() * one.element_size()


def row_bytes(table: torch.Tensor) -> int:
    """Bytes of one row of a table [rows, ...]."""
    return table[0].numel() * table.element_size() if len(table) else 0


def different(index: torch.Tensor, below: int) -> int:
    """How many numbers in [0, below) an index names."""
    return len(torch.unique(index[(index >= 0) & (index < below)]))


def total(counts: torch.Tensor, most: int) -> int:
    """The sum of counts, each from 0 to `most`."""
    return int(counts.long().clamp(0, most).sum())
