"""Unpacked Tritons of exact versions, for the probe: fetched once, checked by locks/triton.lock, kept in the cache.

A folder holds one version for one Python and is put in front of PYTHONPATH; the environment's own Triton is untouched.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from build import cache
from build.call import CallFailed, call
from build.errors import EnvironmentCannot, MatrixError, UsageError
from build.pip import PLATFORMS

LOCK = cache.REPOSITORY / "locks" / "triton.lock"
THIS_PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"


def read_lock(lock: Path = LOCK) -> Mapping[tuple[str, str], str]:
    """(version, Python tag) -> sha256 of the wheel. Raises MatrixError with file and line."""
    hashes: dict[tuple[str, str], str] = {}
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 3 or len(words[2]) != 64 or set(words[2]) - set("0123456789abcdef"):
            raise MatrixError(
                f"{lock.name}:{number}: not a line of the form VERSION PYTHON-TAG SHA256: {line.strip()!r}",
                next_step=f"correct line {number} of {lock}",
            )
        hashes[words[0], words[1]] = words[2]
    return hashes


def versions(lock: Path = LOCK, python_tag: str = THIS_PYTHON) -> list[str]:
    """The versions that the lock pins for a Python, in the lock's order."""
    return [version for version, tag in read_lock(lock) if tag == python_tag]


def triton_dir(version: str, *, lock: Path = LOCK, python_tag: str = THIS_PYTHON) -> Path:
    """The folder that holds Triton `version` for a Python: from the cache, else fetched into it.

    Two callers at once: one fetches, the other waits. A killed fetch leaves no folder that looks whole.

    Raises:
        UsageError: the lock does not pin this version for this Python.
        EnvironmentCannot: it could not be fetched, or the wheel's hash is another one.
    """
    target = cache.folder("triton") / version / python_tag
    if (target / "triton" / "__init__.py").is_file():
        return target
    digest = read_lock(lock).get((version, python_tag))
    if digest is None:
        raise UsageError(
            f"no Triton {version} is pinned for Python {python_tag}",
            cause=f"{lock.name} has {', '.join(versions(lock, python_tag)) or 'none'} for this Python",
            next_step=f"use one of those, or add the wheel's sha256 to {lock}",
        )
    with cache.locked(f"triton-{version}-{python_tag}", waiting_for=f"download of Triton {version}"):
        if not (target / "triton" / "__init__.py").is_file():
            _fetch(version, digest, target, python_tag)
    return target


def _fetch(version: str, digest: str, target: Path, python_tag: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".part-{target.name}-", dir=target.parent))
    try:
        requirement = part / "requirement.txt"
        requirement.write_text(f"triton=={version} --hash=sha256:{digest}\n", encoding="utf-8")
        site = part / "site"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
        ]
        pip += ["--python-version", python_tag.removeprefix("cp"), "--implementation", "cp"]
        pip += [word for name in PLATFORMS for word in ("--platform", name)]
        try:
            call(*pip, "--no-compile", "--target", site, "-r", requirement)
        except CallFailed as failed:
            mismatch = "DO NOT MATCH THE HASHES" in failed.output
            raise EnvironmentCannot(
                f"Triton {version} could not be fetched",
                cause="the wheel's sha256 is not the one in locks/triton.lock" if mismatch else failed.tail,
                next_step=(
                    "find out why the package index serves another file"
                    if mismatch
                    else f"reach a package index, or unpack the wheel into {target}"
                ),
            ) from failed
        site.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
