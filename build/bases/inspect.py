"""Looking into a base, or at this machine's Python, and comparing what is there with what matrix.yaml expects."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import DockerException
from packaging.version import InvalidVersion, Version

from build import cache
from build.bases.probe.children import MARK
from build.bases.reach import check_reach
from build.call import CallFailed, call
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.inspection import Inspection
from build.matrix.model import Target

_PROBE = Path(__file__).with_name("probe")
PROGRAM = "probe.pyz"
LAUNCHER = Path(__file__).with_name("find_python.sh")
LIMIT = 600.0
"""Seconds for a whole inspection; a cold 42 GB base takes minutes to import torch."""
_INSIDE = "/deepinfer-inspection"
_NO_PYTHON = 3


@dataclass(frozen=True)
class Difference:
    """A fact of a base that is not what matrix.yaml expects; found is None where the base has no such thing."""

    fact: str
    expected: str
    found: str | None


def inspect_base(engine: Engine, reference: str) -> Inspection:
    """What a local image holds, from inside it; kept by image id and by the program's own hash.

    A base without Python, without torch or with a torch that crashes is described, with the reason in `problems`.

    Raises:
        EnvironmentCannot: the image is not here, cannot be run, or the program in it ended without an answer.
    """
    image = engine.image_id(reference)
    if image is None:
        raise EnvironmentCannot(f"there is no image {reference} here", next_step=f"docker pull {reference}")
    kept = cache.folder("inspections") / f"{image.removeprefix('sha256:')}.json"
    program = _program_hash()
    known = _read(kept, program)
    if known is None:
        config = engine.image_config(image)
        known = {**_run_in(engine, image, reference, config), **_configured(image, config)}
        if not Inspection.from_json({**known, "reference": reference}).interrupted:
            cache.atomic_write(kept, json.dumps({"program": program, "facts": known}, sort_keys=True))
    return Inspection.from_json({**known, "reference": reference})


def inspect_host(python: Path) -> Inspection:
    """What this machine holds for the interpreter `python`; never kept, since it may change at any time.

    Raises:
        EnvironmentCannot: there is no such Python, or the program ended without an answer.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="deepinfer-inspection-") as folder:
            program = Path(folder) / PROGRAM
            program.write_bytes(bundle())
            done = call(python, program, cwd=Path("/"), timeout=LIMIT, quiet=True, check=False)
    except EnvironmentCannot as missing:
        raise EnvironmentCannot(
            f"there is no Python at {python}", next_step="set DEEPINFER_PYTHON to an interpreter that has torch"
        ) from missing
    except CallFailed as late:
        raise EnvironmentCannot(f"the inspection of {python} did not end within {LIMIT:.0f} s") from late
    facts = _answer(done.stdout, done.stderr, done.returncode, str(python))
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return Inspection.from_json({**facts, "base_id": f"sha256:{digest}", "reference": str(python)})


def _program_hash() -> str:
    return hashlib.sha256(bundle() + LAUNCHER.read_bytes()).hexdigest()


@functools.cache
def bundle() -> bytes:
    """The program as a zip file that Python runs; the same bytes for the same sources."""
    sources = {f"build/bases/probe/{path.name}": path.read_bytes() for path in sorted(_PROBE.glob("*.py"))}
    sources |= dict.fromkeys(("build/__init__.py", "build/bases/__init__.py"), b"")
    sources["__main__.py"] = b"from build.bases.probe.main import main\n\nmain()\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # not packed: the base's Python may lack zlib
        for name, data in sources.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def _read(path: Path, program: str) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text())
        if kept["program"] != program:
            return None
        Inspection.from_json({**kept["facts"], "reference": ""})
        return dict(kept["facts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _run_in(engine: Engine, image: str, reference: str, config: Mapping[str, Any]) -> dict[str, Any]:
    system, machine = config.get("Os"), config.get("Architecture")
    if (system, machine) != ("linux", "amd64"):
        return _empty(str(system), str(machine), f"the image is for {system}/{machine}, not linux/amd64")
    files: dict[str, bytes | Path] = {f"{_INSIDE}/{PROGRAM}": bundle(), f"{_INSIDE}/find_python.sh": LAUNCHER}
    argv = ["/bin/sh", f"{_INSIDE}/find_python.sh", f"{_INSIDE}/{PROGRAM}"]
    try:
        # As root: what Triton left in the root user's home is read too.
        done = engine.run(image, argv, files=files, user="0:0", timeout=LIMIT, owner="inspection")
    except DockerException as problem:
        reason = " ".join(str(problem).split())[:300]
        if "/bin/sh" in reason:
            return _empty("linux", "x86_64", "the image has no /bin/sh and no Python that could be looked for")
        raise EnvironmentCannot(
            f"nothing can be run in {reference}: {reason}", next_step=f"try `docker run --rm {reference}`"
        ) from problem
    if done.returncode == _NO_PYTHON and not done.stdout.strip():
        return _empty("linux", "x86_64", "there is no Python 3.8 or newer on PATH or in the usual places")
    return _answer(done.stdout, done.stderr, done.returncode, reference)


def _empty(system: str, machine: str, problem: str) -> dict[str, Any]:
    names = ("python", "python_tag", "ext_suffix", "executable", "site")
    return {"os": system, "machine": machine, **dict.fromkeys(names, ""), "problems": [problem]}


def _answer(stdout: str, stderr: str, status: int, reference: str) -> dict[str, Any]:
    """The facts in what the program printed, whatever the base's own start-up printed around them."""
    lines = [line for line in stdout.splitlines() if line.startswith(MARK)]
    try:
        facts = json.loads(lines[-1].removeprefix(MARK))
        Inspection.from_json({**facts, "base_id": "", "reference": ""})
    except (IndexError, ValueError, TypeError) as problem:
        tail = "\n".join((stderr or stdout).strip().splitlines()[-6:]) or "it printed nothing"
        if status == 124:
            tail = f"it was killed after {LIMIT:.0f} s"
        raise EnvironmentCannot(
            f"the inspection of {reference} gave no answer (status {status}):\n{tail}",
            cause=_likely(stderr, status),
            next_step="run its Python by hand; DEEPINFER_DEBUG=1 shows more",
        ) from problem
    return dict(facts)


def _likely(stderr: str, status: int) -> str:
    """Why an inspection gave no answer, as far as its end tells; nothing is guessed beside a traceback."""
    if status in (-9, 137):
        return "it was killed, as the kernel does when memory runs out"
    return "" if "Traceback" in stderr or status == 124 else "a Python that cannot start"


def _configured(image: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the image says of how it is run."""
    given = config.get("Config") or {}
    pairs = (entry.partition("=") for entry in given.get("Env") or ())
    return {
        "base_id": image,
        "user": given.get("User") or "",
        "entrypoint": given.get("Entrypoint") or [],
        "command": given.get("Cmd") or [],
        "shell": given.get("Shell") or [],
        "environment": {name: value for name, _, value in pairs},
    }


def expected(target: Target, kind: str) -> dict[str, str]:
    """The facts that matrix.yaml states for a base of this kind; a replica's own column comes over the vendor's."""
    replica = target.replica.expect if kind == "replica" and target.replica is not None else {}
    return {**target.expect, **replica}


def matches(expected_version: str, found: str | None) -> bool:
    """Whether a version is the expected one as far as that goes: "3.12" fits "3.12.3", "2.11.0+cu130" only itself.

    A local part counts where one is expected; a post-, pre- or development release must be named to be accepted.
    """
    if found is None:
        return False
    try:
        wanted, given = Version(expected_version), Version(found)
    except InvalidVersion:
        return found == expected_version or found.startswith(f"{expected_version}.")
    if wanted.local is not None and wanted.local != given.local:
        return False
    if (wanted.epoch, wanted.pre, wanted.dev) != (given.epoch, given.pre, given.dev):
        return False
    if wanted.post is not None and (wanted.release, wanted.post) != (given.release, given.post):
        return False
    return given.release[: len(wanted.release)] == wanted.release


def differences(target: Target, kind: str, inspection: Inspection) -> list[Difference]:
    """The facts in which a base is not what matrix.yaml expects, in its order."""
    facts = inspection.facts()
    return [
        Difference(fact, version, facts.get(fact))
        for fact, version in expected(target, kind).items()
        if not matches(version, facts.get(fact))
    ]


def check_base(target: Target, kind: str, inspection: Inspection, *, accept: bool = False) -> list[Difference]:
    """Stop where the base is not what was agreed on, unless the user accepts it; returns the differences.

    Raises:
        EnvironmentCannot: the base has no Python at all, or one that users cannot be let read, or it differs and
            `accept` is off; with the table.
    """
    if not inspection.python:
        raise EnvironmentCannot(
            f"nothing can be built for {inspection.reference}: {'; '.join(inspection.problems)}",
            next_step="use another base: `--base replica` makes one that fits",
        )
    check_reach(inspection)
    found = differences(target, kind, inspection)
    if not found:
        return []
    rows = [("fact", "expected", "found"), *((row.fact, row.expected, row.found or "none") for row in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    table = "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    notes = "".join(f"\n  note: {problem}" for problem in inspection.problems)
    text = f"the base {inspection.reference} is not what matrix.yaml expects of {target.name}:\n{table}{notes}"
    if accept:
        print(f"warning: {text}", file=sys.stderr, flush=True)
        return found
    if inspection.interrupted:
        raise EnvironmentCannot(
            text, cause="memory ran out while the base was looked at", next_step="run it again, with more memory free"
        )
    raise EnvironmentCannot(
        text, cause="another version under the same tag", next_step="`--accept-base` builds for what is there"
    )
