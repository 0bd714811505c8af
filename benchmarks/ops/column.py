"""The process of a column: it measures workload after workload and appends a line of JSON for each, at once.

    python -m benchmarks.ops.column ORDER

Lines are {"column": ..., "kind": "facts" | "copy" | "begun" | "row" | "end", ...}. Killed or crashed, it has told
all that it knows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.ops import facts, plan, results, timing
from benchmarks.ops.entries import entries
from benchmarks.ops.entry import Entry, Inputs, Work, footprint
from benchmarks.ops.kernels import Obtain, obtain, watching

MEMORY = 48 * 2**30
"""Bytes that the buffers of one workload may take together."""
COPIED = 2**30


def main(order: plan.Order) -> int:
    """Measure; the exit code is 0 even where single workloads failed, for their rows say so."""
    device = torch.device(order.device)
    _column(order, device, partial(results.append, Path(order.file), column=order.column.label))
    return 0


def _column(order: plan.Order, device: torch.device, tell: Callable[..., None]) -> None:
    begin = time.monotonic()
    known = facts.gather(device)
    tell(kind="facts", implementation=order.column.kind, **known)
    clock = timing.CudaClock() if device.type == "cuda" else timing.HostClock()
    wanted = plan.workloads(entries(order.factories), order.rows, order.column.kind)
    wanted = [(entry, rows) for entry, rows in wanted if plan.key(entry, rows) not in order.done]
    tell(kind="copy", bytes_per_second=copy_speed(clock, device))
    kernels = obtain(order.column)
    reached = 0
    for entry, rows in wanted:
        if time.monotonic() - begin > order.column.seconds:
            break
        tell(kind="begun", key=plan.key(entry, rows))
        tell(kind="row", **_told(entry, rows, kernels, clock, device, known["cache_bytes"]))
        reached += 1
    tell(kind="end", reached=reached, planned=len(wanted))


def copy_speed(clock: timing.Clock, device: torch.device) -> float:
    """Bytes read and written a second by the device's own copy of what no cache holds."""
    size = COPIED if device.type == "cuda" else 2**22
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    call = partial(target.copy_, source)
    found = timing.measure(clock, [call], timing.first(clock, call))
    return 2 * size / found.best


def _told(
    entry: Entry, rows: int, kernels: Obtain, clock: timing.Clock, device: torch.device, cache: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"key": plan.key(entry, rows), "family": entry.family, "factory": entry.factory}
    row |= {"entry": entry.name, "rows": rows, "problem": ""}
    try:
        return row | workload(entry, rows, kernels, clock, device, cache)
    except Exception as problem:  # told in the row; the other workloads go on
        return row | {"problem": f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"}
    finally:
        if device.type == "cuda" and torch.cuda.memory_reserved() > MEMORY:
            torch.cuda.empty_cache()


def workload(
    entry: Entry, rows: int, kernels: Obtain, clock: timing.Clock, device: torch.device, cache: int
) -> dict[str, Any]:
    """The figures of one workload."""
    inputs = Inputs(device)
    work = entry.make(rows, inputs)
    count = timing.copies(work.moved, footprint(work.call), cache, MEMORY)
    with watching() as compiled:
        kernel = kernels(entry.factory, work.call)
        first = timing.first(clock, _call(kernel, work))
        works = [work, *(entry.make(rows, inputs) for _ in range(count - 1))]
        found = timing.measure(clock, [_call(kernel, one) for one in works], first)
    return {
        "moved_bytes": work.moved,
        "seconds": found.seconds,
        "best_seconds": found.best,
        "samples": found.samples,
        "how": found.how,
        "buffers": count,
        "beyond_cache": count * work.moved > cache,
        "first_seconds": found.first_seconds,
        "compile_seconds": compiled.seconds,
        "variants": sorted(compiled.variants),
    }


def _call(kernel: Callable[..., Any], work: Work) -> timing.Batch:
    values = [one.value for one in work.call.arguments]
    return lambda: kernel(*values)


if __name__ == "__main__":
    sys.exit(main(plan.Order.from_json(sys.argv[1])))
