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
import time
from collections.abc import Mapping
from typing import Any

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
    try:
        child = subprocess.Popen(
            task["argv"],
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as problem:
        return _ending(127, "", f"{task['argv'][0]}: {problem.strerror}", start)
    try:
        out, err = child.communicate(timeout=task.get("timeout", 120))
        late = False
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        late = True
    return _ending(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"), start, late)


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
