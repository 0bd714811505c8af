"""The builder image: a base with compilers' helpers, build packages, a CUDA_HOME and the newer NCCL in its place.

It is made once for a base and a recipe, carries the project's label, and gives nothing to the finished image.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from build import cache, cuda_headers
from build.bases.rootfs import package_sources
from build.call import CallFailed
from build.containers import LABEL, Engine
from build.digests import file_sha256
from build.errors import EnvironmentCannot
from build.inspection import Inspection
from build.locks import fetch_lock, install_wheel, read_lock
from build.matrix.constraints import satisfies, unmet
from build.matrix.model import Component, Matrix, Target
from build.wheels.fetch import fetch_source

RECIPE = cache.REPOSITORY / "images/builder"
PACKAGES = RECIPE / "packages.lock"
REPOSITORY_NAME = "deepinfer-builder"
SITE = PurePosixPath("/opt/builder/site")
SCRIPTS = PurePosixPath("/opt/builder/bin")
CUDA_HOME = "/usr/local/cuda"
MASQUERADE = "/usr/lib/ccache"
LAY_OVER = RECIPE / "lay_over.py"
LAY_OVER_STEP = '\n# The locked headers over older ones of the base.\nRUN "$PYTHON" /opt/builder/lay_over.py\n'
"""Ends the Dockerfile of those builders that need it, so that the others stay what they are."""


def overlays(matrix: Matrix, target: Target, inspection: Inspection) -> list[Component]:
    """The overlay components that this target's base takes, whatever was selected: others compile against them."""
    named = [matrix.components[name] for name in target.components]
    return [part for part in named if part.provides is not None and _taken(part, part.provides, inspection)]


def _taken(overlay: Component, fact: str, inspection: Inspection) -> bool:
    held = inspection.facts().get(fact)
    newer = held is not None and satisfies(held, f">{overlay.version}")
    return held is not None and not newer and not unmet(overlay, inspection.facts())


def builder_image(
    engine: Engine,
    base_reference: str,
    inspection: Inspection,
    target: Target,
    matrix: Matrix,
    *,
    offline: Path | None = None,
) -> str:
    """The reference of the builder image for a base, built if it is not there yet.

    Raises:
        MatrixError: a lock or an overlay's hash is wrong.
        EnvironmentCannot: packages or headers cannot be had, or the build of the builder fails (with its log).
    """
    wheels = {part.name: fetch_source(part, offline=offline) for part in overlays(matrix, target, inspection)}
    settings = _settings(inspection, replaced=bool(wheels))
    cuda, over = _cuda_lock(inspection)
    tag = f"{REPOSITORY_NAME}:{target.name}-{_key(inspection, settings, cuda, over, wheels)[:12]}"
    if engine.image_id(tag) is not None:
        return tag
    with cache.locked(f"builder-{target.name}", waiting_for=f"builder of {target.name}"):
        if engine.image_id(tag) is None:
            _build(engine, base_reference, inspection, target, tag, settings, cuda, over, wheels)
            # Builders for earlier bases and recipes each hold a whole base on the disk.
            engine.remove_images({f"{LABEL}.role": "builder", f"{LABEL}.image": target.name}, keep=[tag])
    return tag


def _settings(inspection: Inspection, *, replaced: bool) -> dict[str, str]:
    """What prepare.py has to know; part of the builder's key."""
    major = (inspection.cuda or "").split(".")[0]
    runtimes = [library.path for library in inspection.cudart if library.soname == f"libcudart.so.{major}"]
    runtimes.sort(key=lambda path: "/nvidia/" not in path)  # torch's own before others
    return {
        "cuda": inspection.cuda or "",
        "cuda_home": inspection.cuda_home or "",
        "site": str(PurePosixPath(inspection.torch_path).parent) if inspection.torch_path else inspection.site,
        "purelib": inspection.site,
        "cudart": runtimes[0] if inspection.cuda and runtimes else "",
        "nccl_loaded": (inspection.nccl_loaded or "") if replaced else "",
    }


def _cuda_lock(inspection: Inspection) -> tuple[Path | None, bool]:
    """The lock with the headers that the base lacks, and whether they go over older ones that it has.

    No lock where the base needs none: without CUDA, or with a tool kit that no lock is newer than.
    """
    kit = cuda_headers.has_kit(inspection)
    own = cuda_headers.own_headers(inspection.cuda, inspection.nvcc if kit else None)
    locked = [path.stem.removeprefix("cuda-") for path in RECIPE.glob("cuda-*.lock")]
    over = cuda_headers.laid_over(own, locked)
    if over is not None:
        return RECIPE / f"cuda-{over}.lock", True
    if own is None or kit:
        return None, False
    lock = RECIPE / f"cuda-{inspection.cuda}.lock"
    if not lock.is_file():
        raise EnvironmentCannot(
            f"the base has torch for CUDA {inspection.cuda}, no CUDA tool kit, and there is no lock with its headers",
            cause=f"images/builder/ has {', '.join(sorted(f'cuda-{one}' for one in locked))}",
            next_step=f"write images/builder/cuda-{inspection.cuda}.in and run `python -m build.locks relock` on it",
        )
    return lock, False


def debian_suite(inspection: Inspection) -> str:
    """The Debian suite that a base is, "" for another system, whose own package sources have to do."""
    match = re.fullmatch(r"Debian GNU/Linux \d+ \((\w+)\)", inspection.os)
    return match[1] if match else ""


def _key(
    inspection: Inspection, settings: Mapping[str, str], cuda: Path | None, over: bool, wheels: Mapping[str, Path]
) -> str:
    facts: dict[str, object] = {
        "base": inspection.base_id,
        "settings": dict(settings),
        "dockerfile": file_sha256(RECIPE / "Dockerfile"),
        "prepare": file_sha256(RECIPE / "prepare.py"),
        "locks": [read_lock(lock).key(inspection.python_version) for lock in (PACKAGES, cuda) if lock is not None],
        "overlays": {name: path.parent.name for name, path in wheels.items()},  # the folder is called by its sha256
    }
    if over:
        facts["headers"] = file_sha256(LAY_OVER)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _build(
    engine: Engine,
    base_reference: str,
    inspection: Inspection,
    target: Target,
    tag: str,
    settings: Mapping[str, str],
    cuda: Path | None,
    over: bool,
    wheels: Mapping[str, Path],
) -> None:
    log = cache.folder("logs") / f"builder-{target.name}.log"
    log.unlink(missing_ok=True)
    suite = debian_suite(inspection)
    folder = cache.folder(f"builder/{target.name}")
    for left in folder.glob(".part-*"):  # of a killed run: the caller holds the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        context = Path(scratch)
        _fill(context, inspection, settings, cuda, over, wheels, package_sources(suite) if suite else "")
        try:
            engine.build(
                context,
                tag=tag,
                args={
                    "BASE": base_reference,
                    "SUITE": suite,
                    "CUDA": inspection.cuda or "",
                    "PYTHON": inspection.executable,
                },
                labels={f"{LABEL}.role": "builder", f"{LABEL}.image": target.name},
                network="default",
                log=log,
            )
        except CallFailed as problem:
            raise _builder_failed(target, log, problem) from problem
    if engine.image_id(base_reference) != inspection.base_id:
        # What is compiled in it would be kept under the key of another torch.
        engine.client.images.remove(tag)
        raise EnvironmentCannot(
            f"{base_reference} was moved to another image while its builder was being made",
            next_step="run the build again",
        )


def _builder_failed(target: Target, log: Path, problem: CallFailed) -> EnvironmentCannot:
    text = log.read_text(errors="replace") if log.is_file() else problem.output
    cause = "see the end of the log"
    if "no space left on device" in text.lower():
        cause = "the disk of the Docker engine is full"
    elif "Temporary failure resolving" in text or "Unable to fetch" in text or "Failed to fetch" in text:
        cause = "the package mirror cannot be reached from a container (network, proxy)"
    else:
        said = [line for line in text.splitlines() if "error: " in line]
        cause = said[-1].partition("error: ")[2] if said else cause
    return EnvironmentCannot(
        f"the builder image of {target.name} could not be made",
        cause=cause,
        next_step="read the end of the log; a rerun starts where it stopped",
        log=log,
    )


def _fill(
    context: Path,
    inspection: Inspection,
    settings: Mapping[str, str],
    cuda: Path | None,
    over: bool,
    wheels: Mapping[str, Path],
    sources: str,
) -> None:
    tree, nccl = context / "tree", context / "nccl"
    for folder in (tree / "opt/builder", nccl):
        folder.mkdir(parents=True)
    (context / "apt.list").write_text(sources)
    (tree / "opt/builder/settings.json").write_text(json.dumps(dict(settings), sort_keys=True))
    (context / "Dockerfile").write_text((RECIPE / "Dockerfile").read_text() + (LAY_OVER_STEP if over else ""))
    for program in (RECIPE / "prepare.py", *([LAY_OVER] if over else [])):
        shutil.copyfile(program, tree / "opt/builder" / program.name)
    python = inspection.python_version
    for wheel in sorted(fetch_lock(PACKAGES, python).glob("*.whl")):
        install_wheel(wheel, SITE, tree, scripts=SCRIPTS, python=inspection.executable)
    if cuda is not None:
        for wheel in sorted(fetch_lock(cuda, python).glob("*.whl")):
            install_wheel(wheel, PurePosixPath("/opt/builder/cuda"), tree, scripts=None, python=inspection.executable)
    for path in wheels.values():
        with zipfile.ZipFile(path) as archive:
            archive.extractall(nccl)
