"""What of a base's Python a user without rights cannot reach or read."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

KEPT = 2001  # names of unreadable files: one more than can be opened


def on_the_way(path: Path, seen: set[Path]) -> None:
    """Add every folder that has to be passed to reach a path to `seen`: those above it, and above what links name."""
    for parent in [*reversed(path.parents), path]:
        if parent.is_symlink():
            on_the_way(parent.parent / os.readlink(parent), seen)  # noqa: PTH115 (Python 3.8 has no Path.readlink)
    real = Path(os.path.realpath(path))
    seen.update(real.parents)


def closed_to_users(trees: list[Path], files: list[Path]) -> dict[str, Any]:
    """What of `trees` and `files` others than their owner cannot reach or read, by the modes: see the Inspection.

    The group's bits count as well: a user without a name may be of root's group, as clusters and `--user 12345` do it.
    """
    way: set[Path] = set()
    private: dict[str, int] = {}

    def look(path: Path, wanted: int) -> None:
        try:
            status = path.stat()
        except OSError:  # a broken link
            return
        if status.st_mode & wanted != wanted:
            private[os.path.realpath(path)] = 0 if path.is_dir() else status.st_size

    for path in files:
        on_the_way(path, way)
        look(path, 0o44)
    for tree in trees:
        on_the_way(tree, way)
        look(tree, 0o55)
        for folder, below, names in os.walk(tree):
            for name in below:
                look(Path(folder, name), 0o55)
            for name in names:
                look(Path(folder, name), 0o44)
    closed = sorted(str(folder) for folder in way if folder.stat().st_mode & 0o11 != 0o11)
    return {
        "closed": [folder for folder in closed if folder not in private],
        "unreadable": sorted(private)[:KEPT],
        "unreadable_bytes": sum(private.values()),
    }


def reach(facts: dict[str, Any]) -> dict[str, Any]:
    """Whether a user without rights can use this Python."""
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("stdlib"))]
    folders += [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib")), *map(Path, sys.path)]
    # The commands of a virtual environment; a folder such as /usr/bin is the system's own business.
    trees = {folder for folder in folders[1:] if folder.is_dir()}
    trees |= {folders[0]} if (Path(sys.prefix) / "pyvenv.cfg").is_file() else set()
    inner = sorted(tree for tree in trees if not any(other in tree.parents for other in trees))
    files = [Path(sys.executable), Path(sys.prefix, "pyvenv.cfg"), *(path for path in folders if path.is_file())]
    files += [Path(facts[name]) for name in ("nccl_loaded", "libstdcxx") if facts.get(name)]
    return closed_to_users(inner, [path for path in files if path.exists()])
