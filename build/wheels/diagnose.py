"""What a compile's log and record say: the line that matters, the likely cause, the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.errors import CellFailed
from build.matrix.model import Component

STATIC_CURE = (
    "link the shared library: the recipe's LDFLAGS do it unless the component's environment in matrix.yaml overrides "
    "them or its setup.py adds -static-libstdc++"
)
# Most telling first: the compiler's own errors, the linker's, then whatever Python says in the end.
TELLING = (
    re.compile(r"No space left on device"),
    re.compile(r"Killed signal terminated program"),
    re.compile(r":\d+(:\d+)?: (fatal )?error: "),
    re.compile(r"undefined reference to |cannot find -l|multiple definition of "),
    re.compile(r"^error: "),
    re.compile(r"^[A-Za-z_.]*(Error|Exception|Exit|NotFound)\b.*: "),
)


def error_line(text: str) -> str:
    """The line of a log that tells what went wrong: the compiler's first error, else the last complaint, else the end.

    >>> error_line("a.cpp:3:1: error: no\\nninja: stopped\\nRuntimeError: Error compiling objects")
    'a.cpp:3:1: error: no'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in TELLING:
        found = [line for line in lines if pattern.search(line)]
        if found:
            # gcc's first error is the cause and the rest follows from it; of Python's, the last one is what ended it.
            return found[0 if "error: " in pattern.pattern else -1][:300]
    return lines[-1][:300] if lines else "it printed nothing"


def log_text(log: Path, limit: int = 4 << 20) -> str:
    """The end of a log file; empty if there is none."""
    if not log.is_file():
        return ""
    with log.open("rb") as data:
        data.seek(max(0, log.stat().st_size - limit))
        return data.read().decode(errors="replace")


def compile_failed(
    component: Component, cell: str, status: int, log: Path, *, memory_gib: float, out_of_memory: bool
) -> CellFailed:
    """The error for a compile that ended with `status`."""
    text = log_text(log)
    line = error_line(text)
    next_step = "read the log; a rerun compiles only what is missing, and --keep-going lets the others go on"
    if out_of_memory or "Killed signal terminated program" in line or (status == 137 and not text):
        line = f"the compiler was killed: it needs more than the {memory_gib:.1f} GiB that it may have"
        next_step = f"raise components.{component.name}.memory_gib in matrix.yaml, or build with --jobs 1"
    elif "No space left on device" in line:
        next_step = "free space on the Docker engine's disk and run the command again"
    elif status == 124:
        line = "it ran for hours and was stopped"
    return CellFailed(f"{cell} did not compile", cause=line, next_step=next_step, log=log)


def check_linking(cell: str, record: Mapping[str, Any], log: Path) -> None:
    """Refuse a product whose extension modules do not ask for the shared libstdc++.

    Linked in statically, it crashes beside torch's own with a segmentation fault at the first std::regex.
    Raises CellFailed.
    """
    modules = record["modules"]
    static = [str(module["name"]) for module in modules if "libstdc++.so.6" not in module["needed"]]
    if static:
        raise CellFailed(
            f"{cell} is refused: libstdc++ is linked statically into {', '.join(static)}",
            cause="its NEEDED entries lack libstdc++.so.6; such a module crashes inside std::regex at run time",
            next_step=STATIC_CURE,
            log=log,
        )
