"""pytest over many files, in several processes at once: `python -m build.shards PYTEST-ARGUMENTS`.

Tests mostly wait for programs that they start, one after the other; two processes halve that. Files are dealt out in a
few heaps, and a process that has done one takes the next, so that none is left waiting for a heap of slow ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build.cache import REPOSITORY
from build.heartbeat import heartbeat

HEAPS_EACH = 3
"""Heaps for each process; every heap starts pytest anew, which takes a second or two."""
MOST = 4
"""Processes at once, however many processors there are: each may import torch."""
NO_TESTS = 5


def test_files() -> list[Path]:
    """All files of tests; which of their tests are run is for the arguments to say."""
    return sorted((REPOSITORY / "tests").rglob("test_*.py"))


def run(files: Sequence[Path], arguments: Sequence[str], *, workers: int | None = None) -> int:
    """Run the files; what each heap prints comes as a whole when it has ended. Returns a status as pytest's."""
    at_once = workers or max(1, min(MOST, len(os.sched_getaffinity(0))))
    heaps = [files[start :: at_once * HEAPS_EACH] for start in range(at_once * HEAPS_EACH)]
    heaps = [heap for heap in heaps if heap]
    names = [f"tests, part {number} of {len(heaps)}" for number in range(1, len(heaps) + 1)]
    with ThreadPoolExecutor(at_once) as pool:
        statuses = list(pool.map(lambda name, heap: _run_heap(name, heap, arguments), names, heaps))
    return status_of(statuses)


def status_of(statuses: Sequence[int]) -> int:
    """One status for several: of a failure if there is one; no tests at all only where no heap had any."""
    failed = [status for status in statuses if status not in (0, NO_TESTS)]
    if failed:
        return next((status for status in failed if status < 0), max(failed))  # a signal says more than a failed test
    return 0 if 0 in statuses else NO_TESTS


def _run_heap(name: str, heap: Sequence[Path], arguments: Sequence[str]) -> int:
    argv = [sys.executable, "-m", "pytest", *arguments, *map(str, heap)]
    with tempfile.TemporaryDirectory(prefix="deepinfer-tests-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out, heartbeat(name, log=log):
            done = subprocess.run(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=False)
        print(f"== {name}\n{log.read_text(errors='replace')}", end="", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(run(test_files(), sys.argv[1:]))
