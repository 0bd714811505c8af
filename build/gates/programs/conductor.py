"""Runs the other programs of the gates in one container, a few at a time, and tells how each of them ended.

Argument: a JSON list of tasks {"name", "argv", "env", "unset", "timeout"} and the number of processes at a time.
Printed: {name: {"status", "signal", "timed_out", "stdout", "stderr", "seconds"}}.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

_KEPT = 6000


def run_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run one task in a fresh process from `/`; its whole process group is killed at its time limit.

    A PYTHONPATH of the task comes before the one that is set, which may hold what the interpreter needs.
    """
    env = {**os.environ, **task.get("env", {})}
    if "PYTHONPATH" in task.get("env", {}) and os.environ.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join([task["env"]["PYTHONPATH"], os.environ["PYTHONPATH"]])
    for name in task.get("unset", []):
        env.pop(name, None)
    start = time.monotonic()
    # Files, not pipes: a process that a module leaves behind would hold a pipe open, and its end would be waited for.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                task["argv"], cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as problem:
            return _ending(127, "", f"{task['argv'][0]}: {problem.strerror}", start)
        late = False
        try:
            child.wait(task.get("timeout", 120))
        except subprocess.TimeoutExpired:
            late = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return _ending(child.returncode, _text(out), _text(err), start, late)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _ending(status: int, out: str, err: str, start: float, late: bool = False) -> dict[str, Any]:
    name = ""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
    return {
        "status": status,
        "signal": name,
        "timed_out": late,
        "stdout": out,
        "stderr": err[-_KEPT:],
        "seconds": round(time.monotonic() - start, 2),
    }


def main(tasks: list[dict[str, Any]], at_once: int) -> dict[str, Any]:
    """Run all tasks, `at_once` at a time, in the order given."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=at_once) as pool:
        endings = pool.map(run_task, tasks)
        return {task["name"]: ending for task, ending in zip(tasks, endings, strict=True)}
