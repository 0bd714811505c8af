"""Reads the hash-locked sets under locks/ with the standard library alone, for the time before anything is there.

build/locks.py reads the locks of images, reports every mistake in them and fetches their wheels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from build.errors import MatrixError

LOCKS = Path(__file__).resolve().parent.parent.parent / "locks"
PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of CPython whose wheels the locks carry."""

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)")


@dataclass(frozen=True)
class Pin:
    """One package of a lock: normalised name, exact version, the sha256 of every wheel that is accepted."""

    name: str
    version: str
    hashes: frozenset[str]


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it: `PyYAML` -> `pyyaml`, `typing_extensions` -> `typing-extensions`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(lock: Path) -> dict[str, Pin]:
    """The pins of a lock by normalised name.

    Raises:
        MatrixError: the file is missing, or a line is not `name==version --hash=sha256:…`.
    """
    try:
        text = lock.read_text()
    except OSError as problem:
        raise MatrixError(
            f"{lock} cannot be read: {problem.strerror}", next_step="restore the file from the repository"
        ) from problem
    except UnicodeDecodeError as problem:
        raise MatrixError(f"{lock} is not text", next_step="restore the file from the repository") from problem
    pins: dict[str, Pin] = {}
    whole = re.sub(r"\\\n", " ", text)
    for line in whole.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise MatrixError(
                f"{lock.name}: `{line.strip()[:60]}` is not `name==version --hash=sha256:…`",
                next_step="run `./run -- python -m build.setup.relock`",
            )
        name = normalised(match["name"])
        pins[name] = Pin(name, match["version"], frozenset(re.findall(r"sha256:([0-9a-f]{64})", match["hashes"])))
    return pins
