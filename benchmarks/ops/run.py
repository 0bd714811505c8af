"""Run the columns, each in a process of its own, and write what is known after each of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import output
from benchmarks.ops import plot, results, table
from benchmarks.ops.entries import entries
from benchmarks.ops.facts import ROOT
from benchmarks.ops.plan import Column, Order
from deepinfer.ops.names import FAMILY_OF

START = 8.0
"""Seconds that a process takes until it measures."""
GRACE = 90.0
"""Seconds a column may take beyond its own, for its start and its last workload."""
MOST_CRASHES = 6
ROWS, LOG = "rows.jsonl", "log.txt"
Say = Callable[[str], None]


def run(columns: Sequence[Column], order: Order, out: Path, say: Say, command: Sequence[str] = ()) -> dict[str, Any]:
    """Measure all columns; results.json, table.md and the plot in `out` are replaced after each. Returns the document.

    order: what each of them gets; its column and file are set here.

    Raises:
        UsageError, DeepInferError: the folder cannot be made or written.
    """
    output.make_folder(out)
    file = out / ROWS
    for old in (file, out / LOG):
        old.unlink(missing_ok=True)
    found: dict[str, Any] = {}
    for column in columns:
        say(f"{column.label} ...")
        problem = _measure(replace(order, column=column, file=str(file)), file, say)
        if problem:
            results.append(file, column=column.label, kind="problem", problem=problem)
        found = report(out, order.factories, command)
        own = results.of(found["rows"], column.label)
        measured = sum(not row["problem"] for row in own)
        say(f"{column.label}: {measured} of {len(own)} workloads{f'; {problem}' if problem else ''}")
    return found


def report(out: Path, factories: Sequence[str], command: Sequence[str] = ()) -> dict[str, Any]:
    """Make the files of a run from its rows, also where it was killed. Returns the document."""
    found = results.document(results.read(out / ROWS), entries(factories), command)
    output.write(found, table.markdown(found), out)
    plot.draw(found, out)
    return found


def _measure(order: Order, file: Path, say: Say) -> str:
    """Run a column's process, again behind the workload that crashed it; '' or why it ended early."""
    for _ in range(MOST_CRASHES):
        own = results.of(results.read(file), order.column.label)
        done = [line["key"] for line in own if line["kind"] == "row"]
        problem = _process(replace(order, done=done))
        crashed = results.unfinished(results.of(results.read(file), order.column.label))
        if not problem or not crashed:
            return problem
        say(f"{order.column.label}: {crashed} {problem}")
        results.append(file, column=order.column.label, kind="row", **_failed(crashed, problem))
    return f"its process crashed {MOST_CRASHES} times"


def _failed(key: str, problem: str) -> dict[str, Any]:
    path, _, rows = key.rpartition("@")
    factory, _, entry = path.partition("/")
    return {"key": key, "family": FAMILY_OF[factory], "factory": factory, "entry": entry, "rows": int(rows),
            "problem": problem}  # fmt: skip


def _process(order: Order) -> str:
    with tempfile.TemporaryDirectory(prefix="deepinfer-bench-") as scratch:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(Path(order.cache, order.column.label) if order.cache
                                                             else scratch)}  # fmt: skip
        before = os.environ.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (order.column.path, before)))
        command = [sys.executable, "-m", "benchmarks.ops.column", order.to_json()]
        log = Path(order.file).with_name(LOG)
        log.touch()
        start = log.stat().st_size
        status = _ended(command, environment, log, order.column.seconds + GRACE)
    if status == 0:
        return ""
    lines = log.read_bytes()[start:].decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:300]}" if lines else ""
    return f"gave no answer in time{last}" if status is None else f"ended with exit code {status}{last}"


def _ended(command: Sequence[str], environment: dict[str, str], log: Path, seconds: float) -> int | None:
    """The exit code; None where it had to be killed."""
    with log.open("ab") as said:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
