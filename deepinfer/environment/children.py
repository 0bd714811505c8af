"""Examining each part in a process of its own: a segmentation fault or a hang becomes a row of the report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deepinfer.activation import PACKAGE
from deepinfer.environment.parts import PARTS

# The child takes this very package, wherever it lies, and otherwise has the search path of a plain `python`.
_BOOT = (
    "import importlib.util as u, sys;"
    "s = u.spec_from_file_location('deepinfer', sys.argv[1]);"
    "m = sys.modules['deepinfer'] = u.module_from_spec(s);"
    "s.loader.exec_module(m);"
    "from deepinfer.environment.parts import main;"
    "main(sys.argv[2], int(sys.argv[3]))"
)


def examine_all(timeout_s: float) -> list[dict[str, Any]]:
    """The rows of all parts, in the order of PARTS. Each has name, status, version, path, reason and details."""
    started = _Started()
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        try:
            return list(pool.map(lambda name: examine(name, timeout_s, started), PARTS))
        except BaseException:  # Ctrl-C: what hangs would be waited for
            pool.shutdown(wait=False, cancel_futures=True)
            started.end()
            raise


class _Started:
    """Children that are to end when nobody waits for their answers any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._ended = False

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """One more; it ends at once if the others have been ended."""
        with self._lock:
            self._children.append(child)
            if self._ended:
                self._kill(child)

    def end(self) -> None:
        """End them all, and those that are added from now on."""
        with self._lock:
            self._ended = True
            for child in self._children:
                self._kill(child)

    @staticmethod
    def _kill(child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # who waits for it has just seen it end
                os.killpg(child.pid, signal.SIGKILL)


def examine(name: str, timeout_s: float, started: _Started | None = None) -> dict[str, Any]:
    """One part's row. started: told of the process that looks.

    status: "present"; "absent" (not here, which need not be wrong); "failed" (here, and raises); "crashed" (ended its
    process); "timeout". `reason` says why for all but the first.
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-c", _BOOT, str(PACKAGE / "__init__.py"), name, str(writer)]
    # In memory: a report has to come from a container with nothing that can be written, too.
    with os.fdopen(os.memfd_create("deepinfer-env"), "w+b") as said, os.fdopen(reader) as pipe:
        try:
            child = subprocess.Popen(
                command, pass_fds=[writer], stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        finally:
            os.close(writer)
        if started is not None:
            started.add(child)
        row = _outcome(child, timeout_s) or _read(pipe.read())
        if row["status"] == "crashed":
            said.seek(0)
            row["reason"] += _last_line(said.read())
    return {"name": name, "version": "", "path": "", "details": {}, **row}


def _outcome(child: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any] | None:
    """The row of a child that did not end well; None for one that did."""
    try:
        status = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return {"status": "timeout", "reason": f"gave no answer within {timeout_s:g} s"}
    if status == 0:
        return None
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
    return {"status": "crashed", "reason": f"its process ended {how}"}


def _read(text: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"status": "crashed", "reason": "its process ended without an answer"}
    return row


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return f"; it last said: {lines[-1][:200]}" if lines else ""
