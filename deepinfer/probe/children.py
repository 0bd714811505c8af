"""Run the probe's work in a child process and turn whatever becomes of it into a report.

The child writes one JSON line an event to a file. A crash, a hang or a Triton that does not import therefore loses
nothing that was known before, and is a row of the report instead of the end of the caller.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deepinfer.errors import DeepInferError
from deepinfer.probe.report import CheckResult, Compiled, Ran, Report

CHECK_NAMES = (
    "element-wise add",
    "dot",
    "gather rows",
    "gather rope pairs",
    "fp8e4nv block cast",
    "int64 cdf of u32",
    "ptx target",
)
"""The names of `checks.CHECKS`, known here too because importing that module imports Triton."""

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_STDERR_LINES = 15

# The folders go in front of sys.path before anything is imported: what PYTHONPATH would do, but also past a vendor's
# own PYTHONPATH, and not handed on to the programs that Triton starts. Triton reads TRITON_INTERPRET as it is imported;
# with a user's setting left in place there would be nothing that can be compiled.
_CHILD = """
import os, sys
os.environ.pop("TRITON_INTERPRET", None)
triton_folder, package_parent, events, cache, compile_only = sys.argv[1:]
sys.path[:0] = [folder for folder in (triton_folder, package_parent) if folder]
from deepinfer.probe.children import child
child(triton_folder, events, cache, compile_only == "1")
"""


def child(triton_folder: str, events: str, cache: str, compile_only: bool) -> None:
    """What the child process does: the work, with its events appended to the file `events`."""
    from deepinfer.probe.work import probe

    with Path(events).open("a", encoding="utf-8") as lines:

        def emit(event: dict[str, Any]) -> None:
            lines.write(json.dumps(event) + "\n")
            lines.flush()

        try:
            probe(triton_folder, Path(cache), compile_only, emit)
        except Exception as problem:  # an import of Triton may raise anything
            emit({"error": f"{type(problem).__name__}: {problem}"})


def run_probe(triton_folder: str = "", *, compile_only: bool = False, timeout: float = 300) -> Report:
    """Probe the Triton in `triton_folder` (empty: the one that this Python imports) in a child process.

    Args:
        triton_folder: a folder that holds an unpacked `triton` package.
        compile_only: run nothing, even where a Hopper GPU is.
        timeout: seconds for all seven checks; a child that takes longer is killed and reported.
    """
    with _scratch() as scratch:
        events, cache, errors = Path(scratch, "events"), Path(scratch, "cache"), Path(scratch, "stderr")
        argv = [sys.executable, "-c", _CHILD, triton_folder, str(_PACKAGE_PARENT), str(events), str(cache)]
        argv.append("1" if compile_only else "0")
        with errors.open("wb") as stderr:
            try:
                status = subprocess.run(argv, stdout=stderr, stderr=stderr, timeout=timeout, check=False).returncode
                ended = _ending(status)
            except subprocess.TimeoutExpired:
                ended = f"killed after {timeout:.0f} s without an end"
        report = report_of(_read_events(events), ended, triton_folder)
        if report.error:
            _show_tail(errors)
        return report


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, without which Triton compiles nothing. Raises DeepInferError."""
    try:
        return tempfile.TemporaryDirectory(prefix="deepinfer-probe-")
    except OSError as problem:
        raise DeepInferError(
            f"Triton needs a temporary folder to compile in: {problem.strerror or problem}",
            cause="the file system is read-only or full",
            next_step="give it one: `docker run --tmpfs /tmp`, or set TMPDIR to a folder that can be written",
        ) from problem


def _ending(status: int) -> str:
    if status >= 0:
        return "" if status == 0 else f"ended with status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _read_events(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break  # the line that the child was writing when it died
    return events


def report_of(events: Iterable[dict[str, Any]], ended: str, folder: str) -> Report:
    """Put the events (`work.probe` says which) together; what lacks is charged to the step in which the child ended.

    ended: how the child ended, empty for a good end. folder: the one that was probed, empty for this Python's Triton.
    """
    versions: dict[str, Any] = {"triton": None, "torch": None, "device": None}
    done: dict[tuple[str, str], dict[str, Any]] = {}
    current: tuple[str, str] | None = None
    cache: dict[str, dict[str, int]] | None = None
    complete, raised = False, ""
    for event in events:
        if "start" in event:
            versions = event["start"]
        elif "begin" in event:
            current = (event["begin"][0], event["begin"][1])
        elif "done" in event:
            column, name, fields = event["done"]
            done[column, name] = fields
        elif "cache" in event:
            cache = event["cache"]
        complete = complete or "end" in event
        raised = raised or event.get("error", "")
    error = ""
    if not complete:
        error = raised or ended or "ended without a result"
        error += f" ({_step(current, versions['triton'])})"
    elif ended:
        error = f"{ended} after the last check"
    checks = []
    for name in CHECK_NAMES:
        lost = error if current is not None and current[1] == name else "not reached: the probe's process ended"
        compiled = done.get(("compiled", name))
        ran = done.get(("ran", name))
        # Without a compile result nothing can be said of a run; a run that took the process with it has failed.
        died_running = current == ("ran", name)
        checks.append(
            CheckResult(
                name,
                Compiled(**compiled) if compiled else Compiled(False, lost),
                Ran(**ran) if ran else Ran(False if died_running else None, lost),
            )
        )
    return Report(**versions, checks=tuple(checks), path=folder, error=error, cache=cache)


def _step(current: tuple[str, str] | None, triton: str | None) -> str:
    if current is None:
        return "while importing Triton" if triton is None else "before the first check"
    return f"while {'compiling' if current[0] == 'compiled' else 'running'} the check {current[1]!r}"


def _show_tail(errors: Path) -> None:
    lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines:
        print("the probe's process said last:", *lines[-_STDERR_LINES:], sep="\n  ", file=sys.stderr, flush=True)
