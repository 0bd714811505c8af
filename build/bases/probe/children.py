"""Programs and modules that may crash or hang: each in a child process with a time limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "DEEPINFER-INSPECTION "
IMPORT_LIMIT = 180  # seconds; a cold import of torch from a slow disk takes up to a minute


def program(*argv: str, limit: float = 30) -> tuple[int | None, str]:
    """Status and output of a program; status None when it cannot be started or takes too long."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return None, str(problem)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def in_child(mode: str, problems: list[str]) -> dict[str, Any]:
    """Import a module in a child (this program with an argument): its facts, or {} and a problem."""
    status, text = program(sys.executable, str(Path(sys.argv[0]).absolute()), mode, limit=IMPORT_LIMIT)
    for line in text.splitlines():
        if line.startswith(MARK):
            return dict(json.loads(line[len(MARK) :]))
    last = (text.strip().splitlines() or ["it printed nothing"])[-1][:300]
    how = f"it was killed by signal {-status}" if status is not None and status < 0 else last
    problems.append(f"{mode} does not import: {how}")
    return {}
