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
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from zipfile import BadZipFile

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.records import RecordEntry
from installer.sources import WheelFile
from installer.utils import Scheme
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from build import cache
from build.call import CallFailed, call
from build.errors import EnvironmentCannot, MatrixError

# pip matches the number in manylinux_2_N exactly, so that every one up to the newest glibc has to be named.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 42)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!_-]+)(?P<rest>(\s.*)?)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_INDEX = re.compile(r"#\s*index:\s*(https://\S+)")
_RECORD = ".wheels.json"


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
            _assemble(read, python, target)
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
    missing = [pin for pin in lock.pins if _stored(store, pin, python) is None]
    if missing:
        print(f"fetching {len(missing)} of {len(lock.pins)} wheels of {lock.path}", file=sys.stderr, flush=True)
        _download(lock, missing, python, store)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as scratch:
        part = Path(scratch) / target.name
        part.mkdir()
        for pin in lock.pins:
            wheel = _stored(store, pin, python)
            if wheel is None:
                raise EnvironmentCannot(
                    f"{pin.name}=={pin.version} vanished from the cache while {lock.path} was being fetched",
                    next_step="run the command again",
                )
            _link(wheel, part / wheel.name)
        (part / _RECORD).write_text(json.dumps(_stamps(part)))
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)


def fits(wheel: str, python: str) -> bool:
    """Whether a wheel of this file name is for `python` ("3.13"); the platform is not looked at."""
    release = tuple(int(part) for part in python.split(".")[:2])
    known = [
        *cpython_tags(release, platforms=["any"]),
        *compatible_tags(release, f"cp{release[0]}{release[1]}", ["any"]),
    ]
    pairs = {(tag.interpreter, tag.abi) for tag in known}
    return any((tag.interpreter, tag.abi) in pairs for tag in parse_wheel_filename(wheel)[3])


def _stored(store: Path, pin: Pin, python: str) -> Path | None:
    """The stored wheel of a pin for `python`, hashed anew; one that does not fit its name any more is removed.

    A pin may have hashes for several Pythons, whose wheels all lie in the store.
    """
    for value in pin.hashes:
        for wheel in (store / value).glob("*.whl"):
            if not fits(wheel.name, python):
                continue
            if sha256(wheel) == value:
                return wheel
            print(f"{wheel.name} in the cache was changed; fetching it again", file=sys.stderr, flush=True)
            shutil.rmtree(store / value)
    return None


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _download(lock: Lock, pins: Sequence[Pin], python: str, store: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".part-", dir=store) as scratch:
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text("".join(f"{pin.requirement()}\n" for pin in pins))
        got = Path(scratch) / "wheels"
        log = cache.folder("logs") / f"fetch-{lock.path.resolve().parent.name}-{lock.path.stem}.log"
        argv = [*pip_download(python), "--require-hashes", "--dest", got, "--requirement", wanted]
        try:
            call(*argv, log=log, quiet=True)
        except CallFailed as failed:
            output = _logged(log)
            if not lock.indexes or "No matching distribution" not in output:
                raise _explain(lock, pins, output, log) from failed
            print(f"not in the configured index; asking {', '.join(lock.indexes)}", file=sys.stderr, flush=True)
            extra = [word for index in lock.indexes for word in ("--extra-index-url", index)]
            try:
                call(*argv, *extra, log=log, quiet=True)
            except CallFailed as again:
                raise _explain(lock, pins, _logged(log), log) from again
        for wheel in got.glob("*.whl"):
            place = store / sha256(wheel)
            place.mkdir(exist_ok=True)
            wheel.replace(place / wheel.name)


def pip_download(python: str) -> list[str | Path]:
    """The start of a `pip download` that takes wheels for `python` on Linux x86-64 and resolves nothing."""
    argv: list[str | Path] = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    # pip's own cache would keep every wheel a second time.
    argv += ["--no-cache-dir", "--progress-bar=off", "--no-deps", "--only-binary=:all:"]
    return [*argv, "--python-version", python, *(word for name in PLATFORMS for word in ("--platform", name))]


def _logged(log: Path) -> str:
    """What the last command in a log printed."""
    return log.read_text(errors="replace").rpartition("\n+ ")[2]


def _explain(lock: Lock, pins: Sequence[Pin], output: str, log: Path) -> MatrixError | EnvironmentCannot:
    """Say which requirement failed and why, from pip's own words."""
    blamed = re.sub(r"(?m)^(?!\s|.*(?:ERROR|Could not|Expected|Got)).*$", "", output.partition("\n")[2])
    named = [pin for pin in pins if re.search(rf"(?<![\w-]){re.escape(pin.name)}==", blamed)]
    names = ", ".join(f"{pin.name}=={pin.version} (line {pin.line})" for pin in named) or f"{len(pins)} wheels"
    if "DO NOT MATCH THE HASHES" in output:
        return MatrixError(
            f"{lock.path}: the file that the index has for {names} does not have the sha256 of the lock",
            cause="a changed or damaged download, or a wrong sum in the lock",
            next_step="compare with the package's page on PyPI; if the lock is wrong, make it again",
            log=log,
        )
    cause = "the index has no wheel of that version for this Python, or cannot be reached"
    if "No space left" in output:
        cause = "the disk of the build cache is full"
    elif "No module named pip" in output:
        cause = f"{sys.executable} has no pip"
    return EnvironmentCannot(
        f"cannot fetch {names} of {lock.path}",
        cause=cause,
        next_step="read the log; check the network and pip's index (`pip config list`), then run the command again",
        log=log,
    )


class _Destination(SchemeDictionaryDestination):
    """Installs below a destdir and leaves commands out, in RECORD too, where no folder for them is named."""

    commands = True

    def write_script(self, name: str, module: str, attr: str, section: Any) -> RecordEntry:
        if not self.commands:
            return RecordEntry(name, None, None)
        return super().write_script(name, module, attr, section)

    def write_file(
        self, scheme: Scheme, path: str | os.PathLike[str], stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        if scheme == "scripts" and not self.commands:
            return RecordEntry(os.fspath(path), None, None)
        return super().write_file(scheme, path, stream, is_executable)

    def finalize_installation(
        self, scheme: Scheme, record_file_path: str, records: Iterable[tuple[Scheme, RecordEntry]]
    ) -> None:
        kept = [(where, record) for where, record in records if self.commands or where != "scripts"]
        super().finalize_installation(scheme, record_file_path, kept)


def install_wheel(
    wheel: Path, site: PurePosixPath, destdir: Path, *, scripts: PurePosixPath | None, python: str
) -> None:
    """Unpack a wheel below `destdir` as if it were installed at `site`. Files that are there are an error.

    Args:
        site: absolute folder for modules in the target system ("/opt/deepinfer/site").
        scripts: absolute folder for commands; None leaves the wheel's commands out.
        python: absolute path of the target's interpreter, for the commands' first line.

    Raises:
        EnvironmentCannot: the wheel is damaged or does not fit what lies there.
    """
    prefix = site.parent
    folders = {
        "purelib": str(site),
        "platlib": str(site),
        "headers": str(prefix / "include"),
        "scripts": str(scripts or prefix / "bin"),
        "data": str(prefix),
    }
    destination = _Destination(folders, interpreter=python, script_kind="posix", destdir=str(destdir))
    destination.commands = scripts is not None
    try:
        with WheelFile.open(wheel) as source:
            install(source, destination, additional_metadata={"INSTALLER": b"deepinfer-build\n"})
    except (InstallerError, BadZipFile, OSError, ValueError, KeyError) as problem:
        raise EnvironmentCannot(
            f"{wheel.name} cannot be installed into {destdir}: {problem}",
            cause="the wheel is damaged, or another wheel brought the same file",
            next_step="remove the wheel from the cache and run the command again",
        ) from problem


if __name__ == "__main__":
    from build.relock import main

    raise SystemExit(main())
