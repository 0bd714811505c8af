"""Run one function in a process a rank, with a log each, a time limit, and a verdict whatever becomes of them.

The processes are forked (a program that came as text has no file that could be started again), so the parent must have
imported nothing that starts threads: neither torch nor deepinfer.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

LOG_LINES = 25
GRACE_SECONDS = 5.0

Work = Callable[[int, str], tuple[dict[str, Any], str]]
"""(rank, folder shared by all ranks) -> (figures, empty or what is wrong)."""


@dataclass(frozen=True)
class Verdict:
    """A rank's end. reason: empty, or what is wrong. end: it reported that itself, died of it, or was stopped because
    the time was over or another rank had failed.
    """

    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    end: Literal["died", "reported", "stopped"] = "reported"


def run_ranks(work: Work, count: int, limit: float) -> list[Verdict]:
    """Run `work` on `count` ranks until all have ended, one has failed (and the others had their grace), or `limit`
    seconds are over. Verdicts in rank order; where one is bad, the end of every log is printed on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="deepinfer-ranks-") as folder:
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=_rank, args=(work, rank, folder)) for rank in range(count)]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + limit
        statuses = [process.exitcode for process in ranks]
        failed = False
        while None in statuses and time.monotonic() < deadline:
            if not failed and any(status not in (None, 0) for status in statuses):
                failed = True
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)  # the others may still say why
            time.sleep(0.05)
            statuses = [process.exitcode for process in ranks]
        for process in ranks:
            if process.is_alive():
                process.kill()
            process.join()
        why = "another rank failed" if failed else f"the time limit of {limit:.0f} s is over"
        verdicts = [_verdict(folder, rank, status, why) for rank, status in enumerate(statuses)]
        if any(verdict.reason for verdict in verdicts):
            _show_logs(folder, count)
        return verdicts


def _rank(work: Work, rank: int, folder: str) -> None:
    log = os.open(f"{folder}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        figures, reason = work(rank, folder)
    except Exception as failure:  # whatever a library raises is the finding
        import traceback

        traceback.print_exc()
        figures, reason = {}, f"{type(failure).__name__}: {' '.join(str(failure).split())[:600]}"
    target = Path(folder, f"rank{rank}.json")
    part = target.with_suffix(".part")
    part.write_text(json.dumps({"reason": reason, "figures": figures}))
    part.rename(target)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if not reason else 5)  # past exit handlers of a library that may have been left in any state


def _verdict(folder: str, rank: int, status: int | None, why_stopped: str) -> Verdict:
    written = Path(folder, f"rank{rank}.json")
    if written.exists():
        return Verdict(**json.loads(written.read_text()))
    if status is None:
        return Verdict(f"stopped without a result: {why_stopped}", end="stopped")
    return Verdict(f"{_ending(status)} without a result", end="died")


def _ending(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _show_logs(folder: str, count: int) -> None:
    for rank in range(count):
        log = Path(folder, f"rank{rank}.log")
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
        print(f"--- rank {rank}, the last {len(lines)} lines", *lines, sep="\n", file=sys.stderr, flush=True)
