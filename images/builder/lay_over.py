"""Lays the locked CUDA headers over those of the builder's CUDA_HOME, file by file. Runs inside, after prepare.py.

For a base whose own headers are older than the components need. Only headers: what is linked stays the base's own, so
that nothing can be asked of a library that the image will not have.
"""

from __future__ import annotations

import sys
from pathlib import Path

LOCKED = Path("/opt/builder/cuda/nvidia")
HOME = Path("/usr/local/cuda")


def lay_over(locked: Path, include: Path) -> int:
    """Replace files below `include` by links to those of the same name below `locked`/*/include; returns how many."""
    laid = 0
    for source in sorted(locked.glob("*/include")):
        for path in sorted(source.rglob("*")):
            place = include / path.relative_to(source)
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.unlink(missing_ok=True)
                place.symlink_to(path)
                laid += 1
    return laid


if __name__ == "__main__":
    count = lay_over(LOCKED, HOME / "include")
    if not count:
        print(f"error: there are no headers below {LOCKED}", file=sys.stderr)
        raise SystemExit(1)
    print(f"{count} headers laid over {HOME}/include")
