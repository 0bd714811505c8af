"""Run the columns, each in a process of its own, and write what is known after each of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.ops import plot, results, table
from benchmarks.ops.entries import entries
from benchmarks.ops.facts import ROOT
from benchmarks.ops.plan import Column, Order

START = 8.0
"""Seconds that a process takes until it measures."""
GRACE = 90.0
"""Seconds a column may take beyond its own, for its start and its last workload."""
MOST_CRASHES = 6
Say = Callable[[str], None]


def run(columns: Sequence[Column], order: Order, out: Path, say: Say, command: Sequence[str] = ()) -> dict[str, Any]:
    """Measure all columns; results.json, table.md and the plot in `out` are replaced after each. Returns the document.

    order: what each of them gets; its column, file and cache are set here.
    """
    out.mkdir(parents=True, exist_ok=True)
    measured = entries(order.factories)
    heads: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for column in columns:
        say(f"{column.label} ...")
        name = column.label.replace(" ", "-").replace("/", "-")
        file = out / f"{name}.jsonl"
        file.unlink(missing_ok=True)
        cache = Path(order.cache or out / "cache") / name
        problem = _measure(replace(order, column=column, file=str(file), cache=str(cache)), file, say)
        head, own = results.column(column.label, column.kind, results.read(file), problem)
        heads.append(head)
        rows += own
        found = results.document(heads, rows, measured, command)
        write(found, out)
        say(f"{column.label}: {sum(not row['problem'] for row in own)} of {len(own)} workloads{_because(problem)}")
    return found


def _because(problem: str) -> str:
    return f"; {problem}" if problem else ""


def write(found: dict[str, Any], out: Path) -> None:
    """results.json and table.md, each in one step, and the plot."""
    for name, text in (("results.json", json.dumps(found, indent=1) + "\n"), ("table.md", table.markdown(found))):
        aside = out / f".{name}"
        aside.write_text(text, encoding="utf-8")
        aside.replace(out / name)
    plot.draw(found, out)


def _measure(order: Order, file: Path, say: Say) -> str:
    """Run a column's process, again behind the workload that crashed it; '' or why it ended early."""
    done: list[str] = []
    for _ in range(MOST_CRASHES):
        problem = _process(replace(order, done=done))
        lines = results.read(file)
        crashed = results.unfinished(lines)
        if not problem or not crashed:
            return problem
        say(f"{order.column.label}: {crashed} {problem}")
        done = [line["key"] for line in lines if line["kind"] == "row"] + [crashed]
        with file.open("a", encoding="utf-8") as appended:
            appended.write(json.dumps({"kind": "row", **_failed(crashed, problem)}) + "\n")
    return f"its process crashed {MOST_CRASHES} times"


def _failed(key: str, problem: str) -> dict[str, Any]:
    path, _, rows = key.rpartition("@")
    factory, _, entry = path.partition("/")
    family = next(one.family for one in entries([factory]))
    return {"key": key, "family": family, "factory": factory, "entry": entry, "rows": int(rows), "problem": problem}


def _process(order: Order) -> str:
    environment = {**os.environ, "TRITON_CACHE_DIR": order.cache}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, (order.column.path, os.environ.get("PYTHONPATH", ""))))}
    command = [sys.executable, "-m", "benchmarks.ops.column", order.to_json()]
    said = Path(order.file).with_suffix(".log")
    with said.open("ab") as log:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            status: int | None = child.wait(order.column.seconds + GRACE)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if status == 0:
        return ""
    lines = said.read_text(errors="replace").strip().splitlines()
    last = f": {lines[-1][:300]}" if lines else ""
    return f"gave no answer in time{last}" if status is None else f"ended with exit code {status}{last}"
