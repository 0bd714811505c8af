"""Write locks/build.lock, locks/test.lock and locks/test-cuda.lock from their .in files.

Each pin carries the hashes of the wheels that CPython 3.11, 3.12 and 3.13 take on Linux x86-64, as pip's resolver
picks them from PyPI alone: extra indexes and link folders of this machine do not count, for others do not have them.

Example: ./run -- python -m build.setup.relock
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from build import cache
from build.call import CallFailed, call
from build.command import TROUBLE, told_of
from build.errors import EnvironmentCannot, MatrixError
from build.locks import PLATFORMS
from build.setup.lockfile import LOCKS, PYTHONS, Pin, normalised, read_pins

_EXTRA = re.compile(r"^#\+ (?P<name>\S+)==(?P<version>\S+) sha256:(?P<hash>[0-9a-f]{64})\b", re.MULTILINE)
_CUDA = re.compile(r"^(nvidia|cuda)-")


def resolve(source: Path, python: str, constraints: Iterable[Pin]) -> dict[str, Pin]:
    """What pip would install for `source` under `python` from PyPI: name -> pin with the hash of that one wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        pinned = Path(scratch) / "constraints.txt"
        pinned.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in constraints))
        report = Path(scratch) / "report.json"
        argv: list[str | Path] = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        argv += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", python]
        argv += [word for name in PLATFORMS for word in ("--platform", name)]
        argv += ["--target", Path(scratch) / "nowhere", "--report", report, "-c", pinned, "-r", source]
        # An empty value hides what a configuration file or the environment adds to PyPI.
        plain = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_CONSTRAINT": ""}
        call(*argv, env=plain, quiet=True)
        entries = json.loads(report.read_text())["install"]
    found = (_pin(entry) for entry in entries)
    return {pin.name: pin for pin in found}


def _pin(entry: Mapping[str, object]) -> Pin:
    metadata, download = entry["metadata"], entry["download_info"]
    assert isinstance(metadata, dict) and isinstance(download, dict)
    return Pin(
        normalised(metadata["name"]), metadata["version"], frozenset({download["archive_info"]["hashes"]["sha256"]})
    )


def merge(resolutions: Mapping[str, Mapping[str, Pin]]) -> dict[str, Pin]:
    """One pin a name, with the hashes of every Python. Raises MatrixError where they disagree on a version."""
    merged: dict[str, Pin] = {}
    for python, pins in resolutions.items():
        for name, pin in pins.items():
            known = merged.get(name, pin)
            if known.version != pin.version:
                raise MatrixError(
                    f"CPython {python} takes {name} {pin.version}, an earlier one takes {known.version}",
                    next_step=f"pin {name} in the .in file to a version that has wheels for {', '.join(PYTHONS)}",
                )
            merged[name] = Pin(name, pin.version, known.hashes | pin.hashes)
    return merged


def with_extra_hashes(pins: Mapping[str, Pin], text: str) -> dict[str, Pin]:
    """Add the hashes of the `#+` lines of an .in file. Raises MatrixError where a line names another version."""
    extended = dict(pins)
    for match in _EXTRA.finditer(text):
        pin = extended.get(normalised(match["name"]))
        if pin is None or pin.version != match["version"]:
            raise MatrixError(
                f"the line `{match[0]}` names a version that the lock does not have",
                cause=f"the lock has {pin.version if pin else 'no such package'}",
                next_step="replace the line by one for that version, or remove it",
            )
        extended[pin.name] = Pin(pin.name, pin.version, pin.hashes | {match["hash"]})
    return extended


def render(title: str, pins: Iterable[Pin]) -> str:
    """The text of a lock: sorted, one hash a line, no index."""
    lines = [f"# {title}", "# Written by `./run -- python -m build.setup.relock`; change the .in file, not this one."]
    for pin in sorted(pins, key=lambda pin: pin.name):
        hashes = [f"    --hash=sha256:{value}" for value in sorted(pin.hashes)]
        lines.append(" \\\n".join([f"{pin.name}=={pin.version}", *hashes]))
    return "\n".join(lines) + "\n"


def _resolved(name: str, constraints: Iterable[Pin]) -> dict[str, Pin]:
    source = LOCKS / f"{name}.in"
    fixed = list(constraints)
    print(f"resolving {source.name} for CPython {', '.join(PYTHONS)}", file=sys.stderr, flush=True)
    pins = merge({python: resolve(source, python, fixed) for python in PYTHONS})
    return with_extra_hashes(pins, source.read_text())


def main() -> int:
    """Resolve both .in files anew and write the three locks."""
    try:
        build = _resolved("build", [])
        test = _resolved("test", build.values())
        _write(build, test)
    except CallFailed as failed:
        print(f"error: pip cannot resolve: {failed.tail}", file=sys.stderr)
        return EnvironmentCannot.exit_code
    except TROUBLE as problem:
        return told_of(problem).exit_code
    return 0


def _write(build: Mapping[str, Pin], test: Mapping[str, Pin]) -> None:
    pythons = ", ".join(f"CPython {python}" for python in PYTHONS)
    cuda = {name: pin for name, pin in test.items() if _CUDA.match(name)}
    common = [pin for name, pin in test.items() if name not in cuda]
    for name, title, pins in (
        ("build", "What the build system needs", build.values()),
        ("test", "What tests need: torch (its CPU build, or PyPI's) and what both builds need", common),
        ("test-cuda", "The CUDA libraries that PyPI's build of torch needs", cuda.values()),
    ):
        target = LOCKS / f"{name}.lock"
        cache.atomic_write(target, render(f"{title}; {pythons} on Linux x86-64.", pins))
        print(f"{target.name}: {len(read_pins(target))} packages", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
