"""Compiled components by key: `<key>/artefact + meta.json`, written aside and renamed as one folder.

A reader sees a whole entry or none, whoever is killed when. Contents are hashed again at every use: an entry that no
longer fits its record is removed and built anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.digests import file_sha256

KEY = re.compile(r"[0-9a-f]{64}")
META = "meta.json"
DAMAGE = (OSError, ValueError, KeyError, TypeError)
"""What a record or file that is not whole raises."""
ABANDONED_AFTER = 3600.0
"""Seconds after which a `.part-` folder has no writer any more; a put takes seconds."""


@dataclass(frozen=True)
class Entry:
    """A whole, verified entry."""

    artefact: Path
    meta: Mapping[str, Any]


class Wheelhouse:
    """The wheelhouse in a folder (the build cache's `wheelhouse/`), shared by any number of processes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def holds(self, key: str) -> bool:
        """Whether `find` would give an artefact; changes nothing, whatever is there."""
        folder = self._folder(key)
        if not folder.is_dir():
            return False
        try:
            _verified(folder)
        except DAMAGE:
            return False
        return True

    def find(self, key: str) -> Path | None:
        """The artefact for a key, None if there is none or the one there was damaged (and is now removed)."""
        entry = self.entry(key)
        return None if entry is None else entry.artefact

    def entry(self, key: str) -> Entry | None:
        """The artefact with its record; None as `find`."""
        folder = self._folder(key)
        if not folder.is_dir():
            return None
        try:
            return _verified(folder)
        except DAMAGE:
            with contextlib.suppress(OSError), self._changing():  # who only reads may not be allowed to write there
                return self._whole(folder)  # another may have put a whole one there meanwhile
            return None

    def put(self, key: str, artefact: Path, meta: Mapping[str, Any]) -> Path:
        """Keep a copy of `artefact` under `key` with its record; returns the kept file.

        Args:
            meta: what is worth knowing of the compile (cell, inputs, seconds, tools); `artefact`, `size`, `sha256`
                and `created` are added here.

        Raises OSError (no space); then nothing is left under the key.
        """
        folder = self._folder(key)
        self.root.mkdir(parents=True, exist_ok=True)
        self.sweep()
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=self.root))
        try:
            kept = part / artefact.name
            _copy(artefact, kept)
            record = {
                **meta,
                "artefact": artefact.name,
                "size": kept.stat().st_size,
                "sha256": file_sha256(kept),
                "created": int(time.time()),
            }
            (part / META).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
            for path in (kept, part / META, part):
                _sync(path)
            part.chmod(0o755)
            with self._changing():
                if self._whole(folder) is None:  # else another writer was first, and its entry is as good as ours
                    part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return folder / artefact.name

    def sweep(self, older_than: float = ABANDONED_AFTER) -> int:
        """Remove what killed writers left behind; returns how many."""
        removed = 0
        for part in self.root.glob(".part-*"):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > older_than:
                    shutil.rmtree(part)
                    removed += 1
        return removed

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Nobody else removes an entry, or puts one there."""
        with (self.root / ".lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _whole(self, folder: Path) -> Entry | None:
        """The entry in a folder; None if there is none, or it was damaged and is now removed."""
        if not folder.is_dir():
            return None
        try:
            return _verified(folder)
        except DAMAGE as problem:
            self._remove(folder, problem)
            return None

    def _folder(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a cell's key")
        return self.root / key

    def _remove(self, folder: Path, problem: Exception) -> None:
        print(f"wheelhouse: {folder.name[:12]} is damaged ({problem}); removed, to be built again", file=sys.stderr)
        aside = folder.with_name(f".part-damaged-{folder.name[:12]}-{os.getpid()}")
        with contextlib.suppress(OSError):
            folder.rename(aside)  # at once, so that no reader meets a half-removed entry
            shutil.rmtree(aside)


def _verified(folder: Path) -> Entry:
    """The entry in a folder, hashed. Raises one of DAMAGE."""
    meta = json.loads((folder / META).read_text())
    artefact = folder / str(meta["artefact"])
    if artefact.parent != folder:
        raise ValueError("its record names a file elsewhere")
    if artefact.stat().st_size != meta["size"] or file_sha256(artefact) != meta["sha256"]:
        raise ValueError(f"{artefact.name} is not the file that was put there")
    return Entry(artefact, meta)


def _copy(source: Path, target: Path) -> None:
    """A hard link where the file system can (an overlay's wheel has 300 MB), else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
