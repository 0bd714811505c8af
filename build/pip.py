"""Fetching wheels with this machine's pip, for another Python, and saying in plain words why that failed."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from build import cache
from build.call import CallFailed, call
from build.errors import EnvironmentCannot, MatrixError

if TYPE_CHECKING:
    from build.locks import Lock, Pin

# pip matches the number in manylinux_2_N exactly, so that every one up to the newest glibc has to be named.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 42)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)


def pip_download(python: str) -> list[str | Path]:
    """The start of a `pip download` that takes wheels for `python` on Linux x86-64 and resolves nothing."""
    argv: list[str | Path] = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    # pip's own cache would keep every wheel a second time.
    argv += ["--no-cache-dir", "--progress-bar=off", "--no-deps", "--only-binary=:all:"]
    return [*argv, "--python-version", python, *(word for name in PLATFORMS for word in ("--platform", name))]


def download(lock: Lock, pins: Sequence[Pin], python: str, folder: Path) -> list[Path]:
    """Fetch some pins of a lock into a new folder; pip refuses what does not have the lock's sha256.

    The indexes that the lock names are asked only where the configured one does not have a wheel.

    Raises:
        MatrixError: what the index has does not fit the hashes.
        EnvironmentCannot: a wheel cannot be fetched (no network, no such file, no space).
    """
    folder.mkdir(parents=True)
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(f"{pin.requirement()}\n" for pin in pins))
    log = cache.folder("logs") / f"fetch-{lock.path.resolve().parent.name}-{lock.path.stem}.log"
    argv = [*pip_download(python), "--require-hashes", "--dest", folder, "--requirement", wanted]
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
    return sorted(folder.glob("*.whl"))


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
    step = "read the log; check the network and pip's index (`pip config list`), then run the command again"
    if "No space left" in output:
        cause = "the disk of the build cache, or of the temporary folder, is full"
        step = "free space (`./run clean` tells what the cache holds), or set DEEPINFER_BUILD_CACHE or TMPDIR elsewhere"
    elif "No module named pip" in output:
        cause = f"{sys.executable} has no pip"
        step = "install it (`python3 -m ensurepip`, or the distribution's python3-pip), then run the command again"
    return EnvironmentCannot(
        f"cannot fetch {names} of {lock.path}",
        cause=cause,
        next_step=step,
        log=log,
    )
