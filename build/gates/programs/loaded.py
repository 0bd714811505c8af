"""What a process maps that imports torch and all of ours. A line of JSON after each step: a crash loses one step."""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from build.gates.programs.elf import NotElf, read_elf


def mapped(prefixes: tuple[str, ...]) -> list[dict[str, str]]:
    """The files that this process maps whose soname starts with one of `prefixes`: path, soname, device and inode."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or not Path(fields[5]).name.startswith(prefixes):
            continue
        path = Path(fields[5])
        try:
            soname = read_elf(path, symbols=False).soname
        except (NotElf, OSError):
            soname = path.name
        found[f"{fields[3]}:{fields[4]}:{path}"] = {
            "path": str(path),
            "soname": soname or path.name,
            "file": f"{fields[3]}:{fields[4]}",
        }
    return list(found.values())


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _state() -> dict[str, Any]:
    return {
        "mapped": mapped(("libnccl", "libcudart")),
        "flaggems": sorted(name for name in sys.modules if name.split(".")[0] in ("flag_gems", "flaggems")),
    }


def _import(name: str) -> dict[str, Any]:
    start = time.monotonic()
    try:
        module = importlib.import_module(name)
    except BaseException as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}
    return {
        "error": "",
        "file": module.__file__ or "",
        "version": str(getattr(module, "__version__", "")),
        "import_seconds": round(time.monotonic() - start, 2),
    }


def main(modules: list[str], library: str) -> None:
    """Import one module after the other, then load `library` (a soname, or ""), and say after each what is mapped."""
    for name in modules:
        _say(starts=name)
        _say(module=name, **_import(name), **_state())
    if library:
        try:
            ctypes.CDLL(library)
            _say(library="", **_state())
        except OSError as problem:
            _say(library=str(problem), **_state())
