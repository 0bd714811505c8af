"""The build cache: where it lies, how files get into it whole, and how two builds keep out of each other's way.

Layout under DEEPINFER_BUILD_CACHE (default ~/.cache/deepinfer-build):
    downloads/   sources and wheels by sha256         wheelhouse/  compiled components by key
    rootfs/      Debian root file systems             ccache/      compiler cache, one archive a component
    inspections/ what bases hold, by image id         manifests/   of finished images, by image name
    triton/X/    unpacked Triton versions             logs/        a file a cell and step
    locks/       advisory locks                       host/        prefixes of the host target
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from build.errors import EnvironmentCannot
from build.heartbeat import heartbeat

CACHEDIR_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Cache of DeepInfer's build system; safe to delete.\n"
_NOT_PASSED_ON = re.compile(r"""[\x00-\x1f\x7f$`"'\\:\ud800-\udfff]""")
"""What compilers, ninja, ccache and lists of folders do not take in a path, or take for something else."""
_WAIT_SECONDS = 60.0
"""How often a wait for another build is told again."""
REPOSITORY = Path(__file__).resolve().parent.parent


FOLDERS = (
    "attached", "builder", "ccache", "contexts", "docker", "downloads", "host", "inspections", "locks", "logs",
    "manifests", "packs", "parts", "registry", "rootfs", "test-c", "test-host", "test-registry", "test-variants",
    "triton", "wheelhouse", "work",
)  # fmt: skip
"""What the build system keeps in its cache, and nothing else is: a folder that holds other things is somebody's own."""
ALL = "all"
"""The lock's file that every holder of a lock shares, and that `alone` holds for itself."""
LEFTOVER = ".part-"
"""How the names of files begin that were not finished."""


def location() -> Path:
    """Where the cache is, or would be: for readers, who make nothing."""
    given = os.environ.get("DEEPINFER_BUILD_CACHE") or "~/.cache/deepinfer-build"
    try:
        path = Path(given).expanduser().absolute()
    except RuntimeError as problem:
        raise EnvironmentCannot(
            f"there is no home folder in which {given} could lie", next_step="set DEEPINFER_BUILD_CACHE to a folder"
        ) from problem
    if wrong := _NOT_PASSED_ON.search(str(path)):
        raise EnvironmentCannot(
            f"the build cache cannot lie at {str(path)!r}: compilers do not take the character {wrong[0]!r} in a path",
            next_step="set DEEPINFER_BUILD_CACHE to a folder with another name",
        )
    return path


def root() -> Path:
    """The cache's folder, made (with its CACHEDIR.TAG) if it is missing.

    Raises EnvironmentCannot where it cannot be made, or a folder without the tag holds what is not the build system's:
    programs that make backups pass over a folder with that tag, and `clean` empties it.
    """
    path = location()
    tag = path / "CACHEDIR.TAG"
    try:
        if not tag.exists():
            try:
                _make(tag)
            except FileNotFoundError:  # a `clean` that is at its end has removed the folder in between
                _make(tag)
    except OSError as problem:
        shown = f"{str(path)[:60]}…" if problem.errno == errno.ENAMETOOLONG else path
        reason = "a file is in the way" if isinstance(problem, FileExistsError) else problem.strerror
        raise EnvironmentCannot(
            f"the build cache {shown} cannot be written: {reason}",
            next_step="set DEEPINFER_BUILD_CACHE to a folder that you can write, on a disk with room",
        ) from problem
    return path


def _make(tag: Path) -> None:
    tag.parent.mkdir(parents=True, exist_ok=True)
    _refuse_somebodys_own(tag.parent)
    atomic_write(tag, CACHEDIR_TAG)


def _refuse_somebodys_own(path: Path) -> None:
    usual = (*FOLDERS, "lost+found")  # a disk of its own has that
    others = sorted(e.name for e in path.iterdir() if e.name not in usual and not e.name.startswith(LEFTOVER))
    if others and not (path / "CACHEDIR.TAG").exists():  # another build may have made it a cache in between
        shown = ", ".join(name[:40].encode(errors="replace").decode() for name in others[:3])
        raise EnvironmentCannot(
            f"{path} is no build cache: it holds {shown}{' and more' if len(others) > 3 else ''}",
            cause="the build cache has a folder to itself: it is passed over by backups, and emptied by `clean`",
            next_step=f"DEEPINFER_BUILD_CACHE={shlex.quote(str(path / 'deepinfer-build'))}",
        )


def identity() -> str:
    """12 hex digits that tell this cache from others, on this machine and on others that share a Docker engine."""
    return hashlib.sha256(f"{platform.node()}:{root().resolve()}".encode(errors="surrogateescape")).hexdigest()[:12]


def folder(name: str) -> Path:
    """A folder of the cache by its path from the root, made if it is missing."""
    path = root() / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Give a temporary path beside `target`; rename it over `target` only if the block ends well.

    A reader sees the old file or the whole new one. A killed writer leaves `.part-*` files, which `clean` removes.

    Raises FileExistsError where something other than a file has the name: a rename would put a file in the place of a
    device, and of /dev/null for everybody.
    """
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, "it is there, and no file", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=LEFTOVER, suffix=f"-{target.name}", dir=target.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.chmod(0o644)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def atomic_write(target: Path, data: bytes | str) -> None:
    """Write a whole file aside and rename it into place."""
    with atomic_path(target) as part:
        part.write_bytes(data.encode() if isinstance(data, str) else data)


def is_locked(name: str) -> bool:
    """Whether somebody holds the lock `name` at this moment."""
    with contextlib.suppress(FileNotFoundError), (location() / "locks" / f"{name}.lock").open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others who ask are not taken for holders
        except BlockingIOError:
            return True
    return False


def any_locked() -> bool:
    """Whether somebody holds a lock at this moment, as builds, pushes and downloads do."""
    return any(is_locked(path.stem) for path in (location() / "locks").glob("*.lock"))


@contextlib.contextmanager
def held_at_once(name: str) -> Iterator[bool]:
    """Hold the cache's lock `name` if nobody else does; gives whether it is held."""
    with _in_use(), _opened(f"{name}.lock") as handle:
        held = _taken(handle)
        if held:
            _sign(handle)
        yield held


@contextlib.contextmanager
def alone() -> Iterator[bool]:
    """Hold the whole cache if nobody holds a lock of it; gives whether it is held.

    Whoever wants a lock waits until the end of the block, in which none may be taken.
    """
    with _opened(ALL) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = is_there(handle) and not any_locked()  # builds of an older checkout hold nothing but their own
        except BlockingIOError:
            held = False
        yield held


@contextlib.contextmanager
def _in_use() -> Iterator[None]:
    """Keep out who wants the whole cache: see `alone`."""
    while True:
        with _opened(ALL) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                print("waiting for another ./run, which is cleaning up", file=sys.stderr, flush=True)
                fcntl.flock(handle, fcntl.LOCK_SH)
            if is_there(handle):  # else the cache was removed while we waited
                yield
                return


def _opened(name: str) -> IO[str]:
    """The file of a lock, made if it is missing."""
    try:
        return (folder("locks") / name).open("a+")
    except FileNotFoundError:  # the cache was removed between the two steps
        return (folder("locks") / name).open("a+")


def is_there(handle: IO[str]) -> bool:
    """Whether a lock's file still has its name: the lock of a removed file keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), Path(handle.name).stat())
    except FileNotFoundError:
        return False


def _taken(handle: IO[str]) -> bool:
    """Take a lock unless somebody holds it. Who only asks about it (`is_locked`) is gone in a moment."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False


def _sign(handle: IO[str]) -> None:
    """Write down who holds a lock, for who waits."""
    handle.seek(0)
    handle.truncate()
    handle.write(f"{os.getpid()}\n")
    handle.flush()


@contextlib.contextmanager
def locked(name: str, *, waiting_for: str = "") -> Iterator[None]:
    """Hold the cache's lock `name` (an advisory flock, freed by the kernel when the holder dies).

    Args:
        waiting_for: printed on stderr, with the holder's process id, when the lock is taken, and every minute again:
            "build of flagtree".
    """
    with _in_use(), _opened(f"{name}.lock") as handle:
        if not _taken(handle):
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            text = f"waiting for another {waiting_for or name} (process {holder})"
            print(text, file=sys.stderr, flush=True)
            with heartbeat(text, every=_WAIT_SECONDS):
                fcntl.flock(handle, fcntl.LOCK_EX)
        _sign(handle)
        yield
