"""The build cache on the disk: what interrupted runs left in it, and the whole of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build import cache
from build.clean.words import gb, say
from build.errors import EnvironmentCannot
from build.setup import dockerd

_SIGNATURE = cache.CACHEDIR_TAG.splitlines()[0]
_UNFINISHED = f"{cache.LEFTOVER}*"
_LOCKS = "locks"


def remove_leftovers() -> None:
    """Remove the files that nobody will finish; says how much that was. The caller holds the cache alone."""
    freed = 0
    folders = [folder for name in cache.FOLDERS if not (folder := cache.root() / name).is_symlink()]
    places = [cache.root().glob(_UNFINISHED), *(folder.rglob(_UNFINISHED) for folder in folders)]
    for path in sorted(path for place in places for path in place):
        freed += size_of(path)
        remove(path)
    say(f"removed unfinished files from {cache.root()} ({gb(freed)})")


def remove_cache(root: Path) -> None:
    """Remove the build cache, if it is one.

    Raises:
        EnvironmentCannot: no CACHEDIR.TAG of ours says so, a build or dockerd uses it, or NCCL's old file is kept
            by a record in it.
    """
    tag = root / "CACHEDIR.TAG"
    if root.is_symlink() or not tag.is_file() or not tag.read_text(errors="replace").startswith(_SIGNATURE):
        raise EnvironmentCannot(
            f"{root} is not removed: no CACHEDIR.TAG in it says that it is a cache",
            next_step="look at DEEPINFER_BUILD_CACHE; remove the folder by hand if it is the right one",
        )
    with cache.alone() as alone:
        if not alone:
            raise EnvironmentCannot("a build is using the cache", next_step="wait for its end, or end it")
        if (root / "host" / "nccl-replaced.json").exists():
            raise EnvironmentCannot(
                "the cache holds the record of an NCCL file that was replaced, without which it cannot be put back",
                next_step="run `./run clean --host` first",
            )
        if dockerd.started_by_us():
            raise EnvironmentCannot(
                "the cache holds the log and the record of a dockerd that runs",
                next_step="run `./run clean --docker` first",
            )
        freed = sum(size_of(root / name) for name in cache.FOLDERS)
        for name in (*cache.FOLDERS, *(path.name for path in root.glob(_UNFINISHED))):
            if name != _LOCKS:
                remove(root / name)
        strangers = sorted(path.name for path in root.iterdir() if path != tag and path.name != _LOCKS)
        _remove_locks(root / _LOCKS)
        if strangers:
            say(f"kept {root} itself: {', '.join(strangers[:5])} in it are not the build system's")
        else:
            with contextlib.suppress(OSError):  # a build has begun in it
                tag.unlink()  # nearly last: an interrupted removal can be repeated
                root.rmdir()
    say(f"removed the build cache {root} ({gb(freed)})")


def _remove_locks(folder: Path) -> None:
    """The lock that we hold goes last: then a build that waits for it may begin, and make the cache anew."""
    if folder.is_symlink():
        folder.unlink()
        return
    for lock in sorted(folder.iterdir(), key=lambda path: (path.name == cache.ALL, path)):
        remove(lock)
    with contextlib.suppress(OSError):
        folder.rmdir()


def size_of(path: Path) -> int:
    """Bytes on disk below a path; files with several links count once, links themselves are not followed."""
    seen: set[tuple[int, int]] = set()
    total = 0
    below = os.walk(path) if not path.is_symlink() else []  # unlike rglob, it takes no notice of what goes away
    for place in [path, *(Path(folder, name) for folder, folders, files in below for name in folders + files)]:
        try:
            facts = place.lstat()
        except FileNotFoundError:
            continue
        if (facts.st_dev, facts.st_ino) not in seen:
            seen.add((facts.st_dev, facts.st_ino))
            total += facts.st_blocks * 512
    return total


def remove(path: Path) -> None:
    """Remove a file, a link (not what it names) or a whole folder, folders without write permission too."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return

    def unlock(function: Callable[..., Any], name: str, problem: Any) -> None:
        Path(name).parent.chmod(0o700)
        if Path(name).is_dir() and not Path(name).is_symlink():
            Path(name).chmod(0o700)
        function(name)

    try:
        shutil.rmtree(path, onerror=unlock)
    except OSError as problem:
        raise EnvironmentCannot(
            f"{path} cannot be removed whole: {problem.strerror or problem}",
            cause=f"a file in it belongs to another user than {os.geteuid()}",
            next_step="run the same command as that user or as root",
        ) from problem
