"""What a column is asked to measure, in which order, and how long it may take: plain data that goes to its process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.ops.entry import Entry

ORDER = (256, 16384, 64, 4096, 1, 8)
"""Rows that tell most come first: time may run out."""


@dataclass(frozen=True)
class Column:
    """One implementation, measured in a process of its own.

    label: its name in tables. kind: "triton", "reference", "compiled" or "upstream". path: put first on that
    process's PYTHONPATH, '' for none. module: of upstream's factories. seconds: when it starts no further workload.
    """

    label: str
    kind: str
    path: str = ""
    module: str = ""
    seconds: float = 100.0


@dataclass(frozen=True)
class Order:
    """What the process gets. rows: () for all. done: workloads that it leaves out. file: where rows are appended."""

    column: Column
    factories: Sequence[str]
    rows: Sequence[int]
    device: str
    file: str
    cache: str
    done: Sequence[str] = ()

    def to_json(self) -> str:
        """For the process's command line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """The reverse."""
        fields = json.loads(text)
        return cls(**{**fields, "column": Column(**fields["column"])})


def workloads(entries: Sequence[Entry], rows: Sequence[int], kind: str) -> list[tuple[Entry, int]]:
    """Entries at their numbers of rows, most telling first. torch.compile takes seconds for each: it gets two."""
    found = []
    for entry in entries:
        wanted = [one for one in entry.rows if not rows or one in rows]
        ordered = sorted(wanted, key=lambda one: ORDER.index(one) if one in ORDER else len(ORDER))
        if kind == "compiled":
            ordered = ordered[:2]
        found += [(place, entry, one) for place, one in enumerate(ordered)]
    return [(entry, one) for _, entry, one in sorted(found, key=lambda each: each[0])]


def key(entry: Entry, rows: int) -> str:
    """FACTORY/NAME@ROWS."""
    return f"{entry.key}@{rows}"
