"""Replace the NCCL file that torch loads, keep the old one beside it, and put it back.

torch loads NCCL by its own path, so a second file of the same soname elsewhere does not help DeepEP: the file itself
has to be the newer one. Programs that run meanwhile keep the old file, since it is replaced by rename.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from build import cache
from build.digests import file_sha256
from build.errors import EnvironmentCannot


@dataclass(frozen=True)
class Replacement:
    """One replaced file: where it is, where the old one is kept, and the new one's version and hash."""

    target: str
    kept: str
    version: str
    sha256: str


def _record_file() -> Path:
    return cache.folder("host") / "nccl-replaced.json"


def _records() -> list[Replacement]:
    path = _record_file()
    return [Replacement(**entry) for entry in json.loads(path.read_text())] if path.exists() else []


def _save(records: list[Replacement]) -> None:
    cache.atomic_write(_record_file(), json.dumps([asdict(entry) for entry in records], indent=2) + "\n")


def replace_nccl(loaded: Path, new: Path, version: str) -> Replacement:
    """Put `new` (a libnccl.so.2) in the place of the file that torch loads. Repeating it changes nothing.

    The record is written before the file changes, and the old file is kept by a hard link (a copy where links do
    not work) before the rename, so that an interruption at any point can be undone by `restore_nccl`. What is kept is
    the last file that was not ours.

    Raises:
        EnvironmentCannot: the folder cannot be written.
    """
    target = loaded.resolve()
    kept = target.with_name(f".{target.name}.kept-by-deepinfer")
    entry = Replacement(str(target), str(kept), version, file_sha256(new))
    if target.is_file() and file_sha256(target) == entry.sha256:
        return entry
    with cache.locked("host-nccl"):
        try:
            known = _records()
            ours = _ours(known, entry.target)
            if not kept.exists() or (ours and file_sha256(target) not in ours):  # another torch came since
                _keep(target, kept)
            # Until the file is the new one, the one that it replaces is known as ours too.
            _save([*known, entry])
            with cache.atomic_path(target) as part:
                shutil.copyfile(new, part)
            _save([other for other in known if other.target != entry.target] + [entry])
        except OSError as problem:
            raise EnvironmentCannot(
                f"NCCL cannot be replaced at {target}: {problem.strerror or problem}",
                cause="the folder belongs to another user, is read-only, or is full",
                next_step="build as a user who may write there, or leave --replace-nccl out (no DeepEP then)",
            ) from problem
    print(f"replaced {target} by NCCL {version}; the old file is kept as {kept.name}", file=sys.stderr)
    return entry


def _ours(records: list[Replacement], target: str) -> set[str]:
    """The hashes of the files that were put in this place."""
    return {entry.sha256 for entry in records if entry.target == target}


def _keep(target: Path, kept: Path) -> None:
    kept.unlink(missing_ok=True)
    try:
        os.link(target, kept)
    except OSError:
        with cache.atomic_path(kept) as part:
            shutil.copyfile(target, part)


def restore_nccl() -> list[str]:
    """Put every kept NCCL file back; returns what was done, a line a file. Safe to repeat.

    A file that somebody else replaced since (pip reinstalling torch) is left alone and the kept copy removed.
    """
    done: list[str] = []
    with cache.locked("host-nccl"):
        records = _records()
        for place, aside in dict.fromkeys((entry.target, entry.kept) for entry in records):
            target, kept = Path(place), Path(aside)
            if not kept.exists():
                done.append(f"nothing kept for {target}")
            elif target.exists() and file_sha256(target) not in _ours(records, place):
                kept.unlink()
                done.append(f"left {target} as it is: it was replaced by something else since")
            else:
                kept.replace(target)
                done.append(f"put the old {target} back")
        _record_file().unlink(missing_ok=True)
    return done
