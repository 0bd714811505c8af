"""Locks: requirement files in which every wheel is pinned and hashed, and the wheels that they name.

A lock holds lines `name==version --hash=sha256:…` for one Python on Linux x86-64, and may say in a comment
`# index: URL` where else to look for a wheel that the configured index does not have.
`python -m build.locks relock FILE.in --python 3.13` writes one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from build import cache
from build.digests import file_sha256
from build.errors import EnvironmentCannot, MatrixError
from build.install import install_wheel
from build.pip import PLATFORMS, download, pip_download

__all__ = [
    "PLATFORMS",
    "Lock",
    "Pin",
    "fetch_lock",
    "fetched_wheels",
    "fits",
    "install_wheel",
    "pip_download",
    "read_lock",
]

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!_-]+)(?P<rest>(\s.*)?)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_INDEX = re.compile(r"#\s*index:\s*((?:https|file)://\S+)")
_RECORD = ".wheels.json"
_STORE = "downloads-wheels"
"""The lock of who puts a wheel into the store, or takes a damaged one out."""


@dataclass(frozen=True)
class Pin:
    """One wheel of a lock: normalised name, version, the sha256 sums that are accepted, line in the file."""

    name: str
    version: str
    hashes: tuple[str, ...]
    line: int

    def requirement(self) -> str:
        """The line that pip reads."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{value}" for value in self.hashes)])


@dataclass(frozen=True)
class Lock:
    """A lock as read: its pins in file order and the further indexes that it names."""

    path: Path
    pins: tuple[Pin, ...]
    indexes: tuple[str, ...] = ()

    def pin(self, name: str) -> Pin | None:
        """The pin of a distribution, None if the lock does not have it."""
        wanted = canonicalize_name(name)
        return next((pin for pin in self.pins if pin.name == wanted), None)

    def key(self, python: str) -> str:
        """16 hex digits over what the lock asks for; comments and order do not count."""
        facts = [python, sorted((pin.name, pin.version, sorted(pin.hashes)) for pin in self.pins)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def read_lock(path: Path) -> Lock:
    """Read and check a lock.

    Raises:
        MatrixError: naming file and line of everything that is not a pinned, hashed wheel.
    """
    try:
        text = path.read_text()
    except OSError as problem:
        raise MatrixError(
            f"the lock {path} cannot be read: {problem.strerror}",
            next_step=f"make it with `python -m build.locks relock {path.with_suffix('.in')} --python 3.N`",
        ) from problem
    except UnicodeDecodeError as problem:
        raise MatrixError(f"the lock {path} is not text", next_step="restore it from the repository") from problem
    pins: dict[str, Pin] = {}
    problems: list[str] = []
    for number, line in _logical_lines(text):
        match = _PIN.fullmatch(line)
        if match is None:
            problems.append(f"{path}:{number}: `{line}` is not `name==version --hash=sha256:…`")
            continue
        hashes = tuple(_HASH.findall(match["rest"]))
        name = canonicalize_name(match["name"])
        if _HASH.sub("", match["rest"]).strip():
            problems.append(f"{path}:{number}: {name} has something else than sha256 sums after its version")
        elif not hashes:
            problems.append(f"{path}:{number}: {name}=={match['version']} has no --hash=sha256:…")
        elif name in pins:
            problems.append(f"{path}:{number}: {name} is already pinned in line {pins[name].line}")
        else:
            pins[name] = Pin(name, match["version"], hashes, number)
    if not pins and not problems:  # half a file, or one that an editor emptied: an image without packages is no wish
        problems.append(f"{path}: pins nothing")
    if problems:
        raise MatrixError("\n".join(problems), next_step="make the lock again with `python -m build.locks relock`")
    return Lock(path, tuple(pins.values()), tuple(_INDEX.findall(text)))


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    start, parts = 0, list[str]()
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        start = start if parts else number
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            whole = " ".join(part for part in parts if part)
            parts = []
            if whole:
                yield start, whole


def fetch_lock(lock: Path, python: str) -> Path:
    """The folder with exactly the wheels that `lock` names, every one hashed; fetched if they are not there yet.

    Wheels are fetched by this machine's pip for another Python, `python` ("3.13"), on Linux x86-64, and are shared
    between locks. A file that changed since it was fetched is hashed again and replaced.

    Raises:
        MatrixError: the lock is malformed, or what the index has does not fit its hashes.
        EnvironmentCannot: a wheel cannot be fetched (no network, no such file, no space).
    """
    read = read_lock(lock)
    name = f"{lock.resolve().parent.name}-{lock.stem}-{read.key(python)}"
    target = cache.folder("downloads/locks") / name
    with cache.locked(f"fetch-{name}", waiting_for=f"download of {lock.name}"):
        if not _unchanged(target):
            try:
                _assemble(read, python, target)
            except OSError as problem:
                raise EnvironmentCannot(
                    f"the wheels of {lock} cannot be kept in the build cache: {problem}",
                    next_step="free some space (`./run clean`), or set DEEPINFER_BUILD_CACHE to a larger disk",
                ) from problem
    return target


def fetched_wheels(folder: Path) -> dict[str, Path]:
    """The wheels of a fetched folder by normalised distribution name."""
    return {str(parse_wheel_filename(path.name)[0]): path for path in sorted(folder.glob("*.whl"))}


def _unchanged(folder: Path) -> bool:
    """Whether a folder holds the very files that were checked when it was made (size and time of change)."""
    try:
        recorded = json.loads((folder / _RECORD).read_text())
    except (OSError, ValueError):
        return False
    return bool(recorded == _stamps(folder))


def _stamps(folder: Path) -> dict[str, list[int]]:
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(folder.glob("*.whl"))}


def _assemble(lock: Lock, python: str, target: Path) -> None:
    store = cache.folder("downloads/wheels")
    # Only this process has this name: the caller holds the lock. What a killed run left is removed.
    part = target.parent / f".part-{target.name}"
    shutil.rmtree(part, ignore_errors=True)
    missing = [pin for pin in lock.pins if _stored(store, pin, python) is None]
    try:
        if missing:
            print(f"fetching {len(missing)} of {len(lock.pins)} wheels of {lock.path}", file=sys.stderr, flush=True)
            for wheel in download(lock, missing, python, part / "download"):
                place = store / file_sha256(wheel)
                place.mkdir(exist_ok=True)
                with cache.locked(_STORE):
                    wheel.replace(place / wheel.name)
        folder = part / target.name
        folder.mkdir(parents=True)
        for pin in lock.pins:
            for wheel in _candidates(store, pin, python)[:1]:
                _link(wheel, folder / wheel.name)
        stamps = _stamps(folder)
        if len(stamps) != len(lock.pins):
            raise EnvironmentCannot(
                f"wheels vanished from the cache while {lock.path} was being fetched",
                next_step="run the command again",
            )
        (folder / _RECORD).write_text(json.dumps(stamps))
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def fits(wheel: str, python: str) -> bool:
    """Whether a wheel of this file name is for `python` ("3.13"); the platform is not looked at."""
    release = tuple(int(part) for part in python.split(".")[:2])
    known = [
        *cpython_tags(release, platforms=["any"]),
        *compatible_tags(release, f"cp{release[0]}{release[1]}", ["any"]),
    ]
    pairs = {(tag.interpreter, tag.abi) for tag in known}
    return any((tag.interpreter, tag.abi) in pairs for tag in parse_wheel_filename(wheel)[3])


def _candidates(store: Path, pin: Pin, python: str) -> list[Path]:
    """Stored wheels of a pin for `python`: a pin may have hashes for several Pythons, all in the store."""
    named = (wheel for value in pin.hashes for wheel in sorted((store / value).glob("*.whl")))
    return [wheel for wheel in named if fits(wheel.name, python)]


def _stored(store: Path, pin: Pin, python: str) -> Path | None:
    """The stored wheel of a pin, hashed anew; one that does not fit its name any more is removed."""
    for wheel in _candidates(store, pin, python):
        if _is_whole(wheel):
            return wheel
        with cache.locked(_STORE):
            if _is_whole(wheel):  # another fetch has put it there meanwhile
                return wheel
            print(f"{wheel.name} in the cache was changed; fetching it again", file=sys.stderr, flush=True)
            wheel.unlink(missing_ok=True)
    return None


def _is_whole(wheel: Path) -> bool:
    try:
        return file_sha256(wheel) == wheel.parent.name
    except FileNotFoundError:
        return False


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


if __name__ == "__main__":
    from build.relock import main

    raise SystemExit(main())
