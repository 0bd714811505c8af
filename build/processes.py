"""Processes told apart from later ones with the same id: by the time they started and the machine's boot.

Standard library only: the set-up uses it before anything is installed.
"""

from __future__ import annotations

import os
from pathlib import Path


def identity(pid: int) -> dict[str, int | str]:
    """What tells a process from a later one with the same id. Raises OSError or ValueError when it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        raise ValueError("it has ended")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "started": int(fields[19]), "boot": boot}


def own_mark() -> str:
    """This process as one word, for `lives`."""
    return _mark(identity(os.getpid()))


def lives(mark: str) -> bool:
    """Whether the process with this mark still runs on this machine; a text that is no mark is no process."""
    pid = mark.partition("-")[0]
    try:
        return pid.isdecimal() and _mark(identity(int(pid))) == mark
    except (OSError, ValueError):
        return False


def _mark(facts: dict[str, int | str]) -> str:
    return f"{facts['pid']}-{facts['started']}-{facts['boot']}"
