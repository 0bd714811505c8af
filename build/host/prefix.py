"""The prefix: a folder of its own that holds what was built for this machine, laid aside and moved into place whole.

PREFIX/site        deepinfer, deep_gemm, deep_ep, and run-time dependencies that the interpreter lacks
PREFIX/nccl        NCCL's headers and a link to the library that torch loads
PREFIX/bin/deepinfer   the command
PREFIX/image.json  what is here, for `deepinfer env`
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from build import cache
from build.errors import EnvironmentCannot, UsageError
from build.host.nccl import Replacement
from build.host.offline import OfflineFolder
from build.image.describe import SCHEMA, component_facts
from build.image.names import engine_version
from build.image.overlay import read_minimums, sort_runtime, too_old
from build.image.package import pack_engine
from build.inspection import Inspection
from build.locks import fetch_lock, fetched_wheels, fits, install_wheel, read_lock
from build.plan import TargetPlan
from build.wheels.results import CellResult

LAUNCHER = """#!/bin/sh
# Runs DeepInfer's command with the interpreter that it was built for. -P: not what lies in the current folder.
PYTHONPATH={site}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} -P -m deepinfer "$@"
"""


def default_prefix() -> Path:
    """Where the host target installs unless `--prefix` says otherwise."""
    return cache.root() / "host" / "prefix"


def is_ours(prefix: Path) -> bool:
    """Whether a folder is a prefix that we made: it has an image.json that says so."""
    try:
        return bool(json.loads((prefix / "image.json").read_text())["image"] == "host")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def python_of(prefix: Path) -> str:
    """The interpreter that a prefix was laid for; empty if it is none of ours or does not say."""
    try:
        return str(json.loads((prefix / "image.json").read_text())["base"]["reference"]) if is_ours(prefix) else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check_prefix(prefix: Path) -> None:
    """Refuse a folder that is not for us, before anything is compiled for it.

    Raises:
        UsageError: it cannot stand in PYTHONPATH.
        EnvironmentCannot: it holds something that is not ours.
    """
    if ":" in str(prefix):
        raise UsageError(
            f"--prefix {prefix} has a colon in it, at which PYTHONPATH would be split",
            next_step="give --prefix a folder without one",
        )
    if prefix.exists() and not _is_for_us(prefix):
        raise _somebody_elses(prefix)


def _is_for_us(folder: Path) -> bool:
    return is_ours(folder) or (folder.is_dir() and not any(folder.iterdir()))


def _somebody_elses(prefix: Path) -> EnvironmentCannot:
    return EnvironmentCannot(
        f"{prefix} holds something else and is left alone", next_step="give --prefix an empty or new folder"
    )


def lay_prefix(
    prefix: Path,
    plan: TargetPlan,
    inspection: Inspection,
    results: Sequence[CellResult],
    *,
    nccl: Path | None,
    replaced: Replacement | None,
    offline: OfflineFolder | None,
) -> None:
    """Lay everything out beside `prefix` and move it into place; the old one stays until then.

    Args:
        nccl: a tree with nvidia/nccl/include, None where NCCL is not ours.  replaced: the file that was replaced.

    Raises:
        EnvironmentCannot: `prefix` holds something that is not ours, or cannot be written.
        UsageError: as `check_prefix`.
    """
    check_prefix(prefix)
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with _alone_at(prefix):
            for left in prefix.parent.glob(f".part-{glob.escape(prefix.name)}-????????"):
                _restore(left / "old", prefix)
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".part-{prefix.name}-", dir=prefix.parent) as scratch:
                tree = Path(scratch) / "tree"
                final = tree.joinpath(*prefix.parts[1:])
                final.mkdir(parents=True)
                runtime = _lay_site(prefix, tree, plan, inspection, results, offline)
                if nccl is not None:
                    _lay_nccl(final, nccl, Path(replaced.target if replaced else str(inspection.nccl_loaded)))
                _lay_command(prefix, final, inspection)
                document = _document(plan, inspection, results, runtime, replaced)
                (final / "image.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
                _swap(final, prefix, Path(scratch) / "old")
    except OSError as problem:
        raise EnvironmentCannot(
            f"the prefix {prefix} cannot be written: {problem.strerror or problem}",
            cause="the folder belongs to another user, or the disk is full",
            next_step="give --prefix a folder that you can write",
        ) from problem


def remove_prefix(prefix: Path) -> None:
    """Remove a prefix of ours, at once or not at all.

    Raises:
        EnvironmentCannot: it is not there, is not ours, or cannot be removed.
    """
    if not is_ours(prefix):
        what = "holds something else and is left alone" if prefix.exists() else "is not there"
        raise EnvironmentCannot(
            f"the prefix {prefix} {what}", next_step="give --prefix the folder that `build --image host` was given"
        )
    try:
        with _alone_at(prefix), tempfile.TemporaryDirectory(prefix=f".part-{prefix.name}-", dir=prefix.parent) as aside:
            gone = prefix.rename(Path(aside) / "gone")
            if not is_ours(gone):  # looked at again where nobody can write into it any more
                gone.rename(prefix)
                raise _somebody_elses(prefix)
    except OSError as problem:
        raise EnvironmentCannot(
            f"the prefix {prefix} cannot be removed: {problem.strerror or problem}",
            cause="it belongs to another user",
            next_step="remove it as that user",
        ) from problem


@contextlib.contextmanager
def _alone_at(prefix: Path) -> Iterator[None]:
    """Keep out who lays the same prefix with another build cache, whose lock is another one: what is half laid is no
    leftover. A file system without such locks does without.

    The lock is a file of its own, and not the folder: `./run` itself holds locks on the repository's and on `.venv`,
    and a prefix may lie in either.
    """
    file = prefix.with_name(f".{prefix.name}.deepinfer-lock")
    while True:
        with file.open("a") as handle:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if not cache.is_there(handle):  # its last holder has removed it while we waited
                continue
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
            return


def _restore(old: Path, prefix: Path) -> None:
    """Put back what a run set aside that was killed between its two renames."""
    if is_ours(old) and not prefix.exists():
        old.rename(prefix)


def _swap(new: Path, prefix: Path, old: Path) -> None:
    if prefix.exists():
        prefix.rename(old)
    try:
        if old.exists() and not _is_for_us(old):  # looked at where nobody can write into it any more
            raise _somebody_elses(prefix)
        new.rename(prefix)
    except (EnvironmentCannot, OSError):
        if old.exists():
            old.rename(prefix)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _lay_site(
    prefix: Path,
    tree: Path,
    plan: TargetPlan,
    inspection: Inspection,
    results: Sequence[CellResult],
    offline: OfflineFolder | None,
) -> dict[str, Any]:
    site = PurePosixPath(prefix / "site")
    artefacts = {result.cell.component.name: result.artefact for result in results if result.artefact is not None}
    with tempfile.TemporaryDirectory() as scratch:
        extension = artefacts.get("_C")
        engine = pack_engine(cache.REPOSITORY, extension, inspection, Path(scratch), target=plan.target.name)
        install_wheel(engine, site, tree, scripts=None, python=inspection.executable)
    for result in results:
        if result.cell.component.kind == "wheel" and result.artefact is not None:
            install_wheel(result.artefact, site, tree, scripts=None, python=inspection.executable)
    return _lay_runtime(site, tree, plan, inspection, offline)


def _lay_runtime(
    site: PurePosixPath, tree: Path, plan: TargetPlan, inspection: Inspection, offline: OfflineFolder | None
) -> dict[str, Any]:
    """Add the run-time dependencies that the interpreter lacks; returns what was decided of each."""
    if plan.target.runtime_lock is None:
        return {}
    lock = cache.REPOSITORY / plan.target.runtime_lock
    wanted = {pin.name: pin.version for pin in read_lock(lock).pins}
    decided = sort_runtime(wanted, read_minimums(lock.with_suffix(".in")), inspection.distributions)
    for line in too_old(decided):
        print(f"note: {line}", file=sys.stderr, flush=True)
    adding = [name for name, facts in decided.items() if facts["status"] == "added"]
    if not adding:
        return decided
    python = inspection.python_version
    found = _offline_wheels(lock, python, offline) if offline else fetched_wheels(fetch_lock(lock, python))
    missing = [f"{name}=={wanted[name]}" for name in adding if name not in found]
    if missing:
        raise EnvironmentCannot(
            f"{inspection.executable} lacks {', '.join(missing)}, and the packs do not have them either",
            next_step=f"bring the wheels of {plan.target.runtime_lock} for Python {python} into the folder of packs",
        )
    for name in adding:
        install_wheel(found[name], site, tree, scripts=None, python=inspection.executable)
    return decided


def _offline_wheels(lock: Path, python: str, offline: OfflineFolder) -> dict[str, Path]:
    found = {}
    for pin in read_lock(lock).pins:
        wheels = [
            wheel for wheel in map(offline.by_sha256, pin.hashes) if wheel is not None and fits(wheel.name, python)
        ]
        if wheels:
            found[pin.name] = wheels[0]
    return found


def _lay_nccl(final: Path, nccl: Path, loaded: Path) -> None:
    """Headers as DeepEP's JIT needs them, and a link to the file that torch loads: it compares the two."""
    shutil.copytree(nccl / "nvidia" / "nccl" / "include", final / "nccl" / "include")
    (final / "nccl" / "lib").mkdir()
    (final / "nccl" / "lib" / "libnccl.so.2").symlink_to(loaded)


def _lay_command(prefix: Path, final: Path, inspection: Inspection) -> None:
    (final / "bin").mkdir()
    command = final / "bin" / "deepinfer"
    site, python = shlex.quote(str(prefix / "site")), shlex.quote(inspection.executable)
    command.write_text(LAUNCHER.format(site=site, python=python))
    command.chmod(0o755)


def _document(
    plan: TargetPlan,
    inspection: Inspection,
    results: Sequence[CellResult],
    runtime: dict[str, Any],
    replaced: Replacement | None,
) -> dict[str, Any]:
    declared: dict[str, Any] = {}
    if replaced is not None:
        declared["nccl"] = {
            "version": replaced.version, "replaced": inspection.nccl_version, "path": replaced.target,
        }  # fmt: skip
    return {
        "schema": SCHEMA,
        "image": plan.target.name,
        "title": plan.target.title,
        "version": engine_version(cache.REPOSITORY),
        "key": plan.image_key,
        "base": {"kind": "host", "reference": inspection.executable, "facts": inspection.facts()},
        "components": component_facts(plan, results),
        "toolchain": {"status": "base", "path": inspection.cuda_home, "nvcc": inspection.nvcc},
        "runtime": runtime,
        "declared": declared,
        "notes": [],
    }
