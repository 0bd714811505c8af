"""Without a GPU: build every entry with few rows and run it once, to learn whether the kernels accept the calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from benchmarks.ops.entry import Entry, Inputs, footprint
from benchmarks.ops.kernels import obtain
from benchmarks.ops.plan import Column

ROWS = (1, 7)


def check(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """(FACTORY/NAME@ROWS, '' or what is wrong) for each entry at `ROWS` rows, on the reference backend."""
    for entry in entries:
        for rows in ROWS:
            try:
                found = _one(entry, rows)
            except Exception as problem:  # a finding: the other entries go on
                found = f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"
            yield f"{entry.key}@{rows}", found


def _one(entry: Entry, rows: int) -> str:
    work = entry.make(rows, Inputs("cpu", junk=77))
    outputs = [one.value for one in work.call.arguments if one.output and isinstance(one.value, torch.Tensor)]
    before = [_bits(value) for value in outputs]
    kernel = obtain(Column("dry", "reference"))(entry.factory, work.call)
    kernel(*(one.value for one in work.call.arguments))
    if outputs and all(old.equal(_bits(new)) for old, new in zip(before, outputs, strict=True)):
        return "the call changed no output"
    if not 0 < work.moved <= 4 * footprint(work.call):
        return f"{work.moved} bytes to move, of buffers of {footprint(work.call)} bytes"
    return ""


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.uint8).clone() if value.dim() else value.clone()
