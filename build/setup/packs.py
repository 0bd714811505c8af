"""build.lock's wheels from a folder of packs, for an interpreter into which nothing is installed.

`DIR/wheels/*.whl` may hold the wheels of several Pythons; those that the lock names by hash and that fit this one are
unpacked into the cache, once per content, and put on PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from build import cache
from build.digests import file_sha256
from build.errors import EnvironmentCannot
from build.setup import system
from build.setup.lockfile import LOCKS, Pin, normalised, read_pins


def provide(offline: Path | None, *, strict: bool) -> Path | None:
    """The folder to put on PYTHONPATH, None where the interpreter needs no pack.

    Args:
        offline: the folder of packs, None where the user named none.
        strict: what is missing is an error, not a note (a command of the user's may need none of it).

    Raises:
        EnvironmentCannot: packages are in neither the packs nor the interpreter; each is named.
    """
    pins = read_pins(LOCKS / "build.lock")
    wheels = matching_wheels(offline, pins.values()) if offline is not None else {}
    own = {normalised(dist.name): dist.version for dist in importlib.metadata.distributions() if dist.name}
    lacking = [pin for pin in pins.values() if pin.name not in wheels and pin.name not in own]
    if lacking:
        problem = _lacking(offline, lacking)
        if strict:
            raise problem
        system.say(problem.what)
    other = [pin for pin in pins.values() if pin.name not in wheels and own.get(pin.name, pin.version) != pin.version]
    if other:
        listed = ", ".join(f"{pin.name} {own[pin.name]} (locked: {pin.version})" for pin in other)
        system.say(f"taking {sys.executable}'s own {listed}")
    return unpacked(wheels) if wheels else None


def matching_wheels(offline: Path, pins: Iterable[Pin]) -> dict[str, Path]:
    """The wheels of `offline`/wheels that the lock names and this Python can import, by package.

    Raises:
        EnvironmentCannot: the folder does not exist, or a file called like a locked wheel has another hash.
    """
    if not offline.is_dir():
        raise EnvironmentCannot(f"--offline {offline} is not a folder", next_step="make it and put the packs there")
    candidates = [path for path in sorted((offline / "wheels").glob("*.whl")) if fits(path.name)]
    found: dict[str, Path] = {}
    for pin in pins:
        for wheel in candidates:
            name, version = wheel.name.split("-")[:2]
            if normalised(name) != pin.name or version != pin.version:
                continue
            if file_sha256(wheel) not in pin.hashes:
                raise EnvironmentCannot(
                    f"{wheel} is not the file that locks/build.lock names: its sha256 differs",
                    cause="it did not arrive whole, or it comes from somewhere else",
                    next_step="copy it again",
                )
            found[pin.name] = wheel
    return found


def fits(name: str) -> bool:
    """Whether a wheel of this file name runs on this Python, on Linux x86-64 with glibc."""
    parts = name.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):
        return False
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    minor = sys.version_info.minor
    stable = {f"cp3{older}" for older in range(2, minor + 1)}
    python_fits = (
        "py3" in pythons
        or (f"cp3{minor}" in pythons and {f"cp3{minor}", "abi3", "none"} & set(abis))
        or ("abi3" in abis and stable & set(pythons))
    )
    return bool(python_fits) and any(
        platform == "any" or (platform.endswith("_x86_64") and platform.startswith(("manylinux", "linux")))
        for platform in platforms
    )


def unpacked(wheels: Mapping[str, Path]) -> Path:
    """The folder with the unpacked wheels, made if the cache does not have it; whole or not at all."""
    content = "\n".join(sorted(f"{wheel.name} {file_sha256(wheel)}" for wheel in wheels.values()))
    target = cache.folder("packs") / hashlib.sha256(content.encode()).hexdigest()[:16]
    if target.is_dir():
        return target
    with cache.locked(f"packs-{target.name}", waiting_for="unpacking of these packs"):
        if not target.is_dir():
            _unpack(wheels, target)
    return target


def _unpack(wheels: Mapping[str, Path], target: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
    try:
        for wheel in wheels.values():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
        scratch.chmod(0o755)
        scratch.rename(target)
    except (OSError, zipfile.BadZipFile) as problem:
        raise EnvironmentCannot(
            f"the wheels of the packs cannot be unpacked into {target.parent}: {problem}",
            cause="the disk is full, or a file is damaged",
            next_step="free some space, or set DEEPINFER_BUILD_CACHE to another folder",
        ) from problem
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _lacking(offline: Path | None, pins: list[Pin]) -> EnvironmentCannot:
    listed = ", ".join(f"{pin.name}=={pin.version}" for pin in pins)
    folder = offline or "PACKS"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    fetch = (
        f"python3 -m pip download --no-deps --require-hashes --only-binary=:all: --python-version {python} "
        f"--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 "
        f"-r locks/build.lock -d {shlex.quote(f'{folder}/wheels')}"
    )
    where = f"neither {offline}/wheels nor {sys.executable} has" if offline else f"{sys.executable} lacks"
    hint = "" if offline else f", then run again with --offline {shlex.quote(str(folder))}"
    return EnvironmentCannot(
        f"{where} {listed}",
        cause="with DEEPINFER_PYTHON nothing is installed: what is missing comes from a folder of packs",
        next_step=f"on a machine with a network, type\n    {fetch}\n  and bring the folder here{hint}",
    )
