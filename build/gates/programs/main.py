"""Entry of the zip file: `python gates.pyz PROGRAM JSON`, where JSON holds the program's arguments by name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from build.gates.programs import conductor, files, inventory, linked, loaded, neighbours, toolchain


def _access(roots: list[str], packages: list[str], cache: str, document: str) -> dict[str, Any]:
    text = ""
    if document and Path(document).is_file() and os.access(document, os.R_OK):
        text = Path(document).read_text(errors="replace")
    return {
        "uid": os.getuid(),
        "hashes": files.hashes(packages),
        "unreadable": files.unreadable(roots),
        "cache": files.writable(cache) if cache else "",
        "document": text,
    }


def _scan(
    base: str, own: list[str], libraries: list[str], needles: dict[str, str], sums: bool = False
) -> dict[str, Any]:
    facts = files.scan(base, own, libraries, needles)
    if sums and facts["added"] is not None:
        image = [path for path in facts["added"] if path not in inventory.OF_THE_ENGINE]
        facts["inventory"] = inventory.inventory(image, libraries=libraries)
    return facts


PROGRAMS = {
    "conductor": conductor.main,
    "linked": linked.main,
    "loaded": loaded.main,
    "neighbours": neighbours.main,
    "toolchain": toolchain.main,
    "access": _access,
    "scan": _scan,
    "inventory": inventory.inventory,
    "listing": files.packed_listing,
}


def main() -> None:
    """Run the program named by the first argument and print what it returns as JSON (text as it is)."""
    name, arguments = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "{}"
    if arguments.startswith("@"):
        arguments = Path(arguments[1:]).read_text()
    print(flush=True)  # what the base's start-up printed may have no line end, and would hide the first line of ours
    facts = PROGRAMS[name](**json.loads(arguments))  # type: ignore[operator]
    if facts is not None:
        print(facts if isinstance(facts, str) else json.dumps(facts), flush=True)
