"""Digests of files. Standard library only: the set-up uses it before anything is installed."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """64 hex digits over a file's contents."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
