"""Does the vendor's own software still work in a process that knows nothing of ours? A line of JSON after each step."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import re
import sys
from typing import Any


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def distributions(paths: list[str] | None = None) -> list[dict[str, str]]:
    """Everything installed (on `paths`, else on this process's own path): normalised name, version, folder."""
    found = importlib.metadata.distributions(path=paths) if paths else importlib.metadata.distributions()
    rows = []
    for one in found:
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        rows.append({"name": name, "version": one.version, "folder": str(one.locate_file(""))})
    return rows


def _import(name: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
    except BaseException as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}
    return {"error": "", "version": str(getattr(module, "__version__", "")), "file": str(module.__file__)}


def _origin(name: str) -> str:
    """The file that `import name` would load here, "" if it would fail."""
    spec = importlib.util.find_spec(name)
    return "" if spec is None else str(spec.origin or "")


def main(modules: list[str], ours: list[str], site: str) -> None:
    """Import the vendor's `modules`, then tell where the names in `ours` lead. site: our folder beside the vendor's."""
    _say(distributions=distributions(), ours=distributions([site]) if site else [])
    _say(paths=sys.path[1:])
    for name in modules:
        _say(starts=name)
        _say(module=name, **_import(name))
    _say(origins={name: _origin(name) for name in ours}, engine_loaded="deepinfer" in sys.modules)
