"""`doctor`: what this machine has and lacks for a build, row by row, with the command to type."""

from __future__ import annotations

import json as json_module
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from build import cache
from build.bases.disk import engine_folder
from build.call import CallFailed, call
from build.command import TROUBLE, as_build_error
from build.containers import Engine
from build.docker_client import build_command
from build.errors import EnvironmentCannot
from build.host_memory import host_memory
from build.setup import docker_engine, dockerd, engine_answer, install, interpreter, system
from build.setup.environment import Environment
from build.setup.lockfile import LOCKS, PYTHONS, normalised, read_pins

Status = Literal["ok", "warn", "fail"]

IMAGE_GB = 8.0
"""What one image takes in the engine's storage, at most (10^9 bytes)."""
COMFORTABLE_GB = 30.0
"""Room for a replica, its builder, an image and BuildKit's copies of their layers."""
COMPILE_GIB = 3.1
"""Peak memory of one compile."""
CUDA13_DRIVER = 580


@dataclass(frozen=True)
class Row:
    """One finding: ok, warn (some things will not work, or slowly) or fail (builds will not work)."""

    name: str
    status: Status
    detail: str
    next_step: str = ""


def run(*, json: bool = False, online: bool = False) -> int:
    """Print the rows; 0, or 4 when one of them failed.

    Args:
        json: print them as JSON, alone on stdout.
        online: also ask the vendors' registries.
    """
    rows = list(examine(online=online))
    if json:
        print(json_module.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(as_table(rows))
    return EnvironmentCannot.exit_code if any(row.status == "fail" for row in rows) else 0


def as_table(rows: list[Row]) -> str:
    """The rows as text: what there is to type stands below its row."""
    width = max(len(row.name) for row in rows)
    lines: list[str] = []
    for row in rows:
        lines.append(f"{row.status:<4}  {row.name:<{width}}  {row.detail}")
        lines += [f"{'':<{width + 6}}  -> {line.strip()}" for line in row.next_step.splitlines() if line.strip()]
    return "\n".join(lines)


def examine(*, online: bool) -> Iterator[Row]:
    """Look at everything. An examination that fails is a row, and the others go on."""
    examinations: list[Callable[[], Iterator[Row]]] = [_python, _locks, _engine, _storage, _machine, _cache, _gpu]
    for examination in [*examinations, *([_registries] if online else [])]:
        try:
            yield from examination()
        except TROUBLE as problem:
            told = as_build_error(problem)
            detail = f"{told.what} ({told.cause})" if told.cause else told.what
            yield Row(examination.__name__.strip("_"), "fail", detail, told.next_step)


def _python() -> Iterator[Row]:
    version = platform.python_version()
    given = os.environ.get("DEEPINFER_PYTHON")
    if given:
        yield Row(
            "Python", "ok", f"{version}, {sys.executable}, as DEEPINFER_PYTHON says; nothing is installed into it"
        )
    else:
        fits = version.rpartition(".")[0] in PYTHONS
        advice = "" if fits else f"use Python {PYTHONS[0]} to {PYTHONS[-1]}, for which the locks have wheels"
        yield Row("Python", "ok" if fits else "fail", f"{version}, {sys.executable}", advice)
        yield _environment(Environment(cache.REPOSITORY))
    python = interpreter.host_python()
    try:
        yield Row("torch for the host", "ok", f"{interpreter.require_torch(python)} of {python}")
    except EnvironmentCannot as problem:
        yield Row("torch for the host", "warn", f"{problem.what}; only `--image host` needs it", problem.next_step)


def _environment(environment: Environment) -> Row:
    if environment.being_set_up():
        return Row(".venv", "ok", f"{environment.folder} is being set up by another start")
    everything = ("build", "test", "engine")
    missing = environment.missing(everything)
    commands = "\n".join(install.commands(environment, missing)) if missing else ""
    if reason := environment.distrusted():
        return Row(".venv", "warn", f"{reason}; the next start makes it anew", commands)
    if "build" in missing:
        return Row(".venv", "warn", f"{environment.folder} lacks {', '.join(missing)}; ./run installs them", commands)
    if missing:
        held = [name for name in everything if name not in missing]
        detail = f"{environment.folder} holds the set{'s' * (len(held) > 1)} {', '.join(held)}"
        lacks = " and ".join(missing)
        return Row(".venv", "ok", f"{detail}; `./run test` adds {lacks}, which only tests and commands need")
    return Row(".venv", "ok", f"{environment.folder}, as the locks say")


def _locks() -> Iterator[Row]:
    problems = [problem for name in ("build", "test") for problem in lock_problems(name)]
    relock = "./run -- python -m build.setup.relock" if problems else ""
    count = sum(len(read_pins(LOCKS / f"{name}.lock")) for name in ("build", "test", "test-cuda"))
    yield Row("locks", "fail" if problems else "ok", "; ".join(problems) or f"{count} pins, all hashed", relock)


def lock_problems(name: str) -> list[str]:
    """Where locks/NAME.lock does not fit locks/NAME.in: a requirement without a pin, or with one that it excludes."""
    pins = read_pins(LOCKS / f"{name}.lock")
    problems = []
    for line in (LOCKS / f"{name}.in").read_text().splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(text)
        pin = pins.get(normalised(requirement.name))
        if pin is None:
            problems.append(f"{name}.lock has no {requirement.name}")
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            problems.append(f"{name}.lock has {pin.name} {pin.version}, {name}.in wants {requirement}")
    return problems


def _engine() -> Iterator[Row]:
    elsewhere = engine_answer.elsewhere()
    can_set_up = system.is_root() and not elsewhere and shutil.which("apt-get") is not None
    try:
        command = build_command()
        version = call(command[0], "--version", quiet=True, check=False).stdout.strip()
        yield Row("BuildKit", "ok", f"{command[0]}: {version}")
    except EnvironmentCannot as problem:
        advice = system.install_command(docker_engine.missing_packages(engine=True) or ["docker.io"])
        if can_set_up and shutil.which("docker") is None:
            yield Row("BuildKit", "warn", f"{problem.what}; ./run build installs one", advice)
        else:
            yield Row("BuildKit", "fail", problem.what, advice)
    where = engine_answer.place()
    refused = engine_answer.refusal()
    if refused:
        detail = f"none answers at {where}: {refused}" + ("; ./run build starts one" if can_set_up else "")
        advice = "" if elsewhere else "\n".join(docker_engine.commands())
        yield Row("Docker engine", "warn" if can_set_up else "fail", detail, advice)
    else:
        yield _answering_engine(Engine.connect(), where)
    if shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        yield Row("debootstrap", "ok", "replicas can be made where no registry answers")
    else:
        detail = "missing; replicas then need a registry for their Debian base"
        yield Row("debootstrap", "warn", detail, system.install_command(["debootstrap"]))


def _answering_engine(engine: Engine, where: str) -> Row:
    info = engine.client.info()
    driver = str(info.get("Driver"))
    pid = dockerd.started_by_us()
    ours = f", started by ./run (process {pid}; `./run clean --docker` stops it)" if pid else ""
    detail = f"{info.get('ServerVersion')} at {where}, storage {driver}, {info.get('NCPU')} cores{ours}"
    if driver == "vfs":
        return Row(
            "Docker engine",
            "warn",
            f"{detail}: vfs copies every layer whole",
            "give /var/lib/docker a file system for overlay2 (ext4, xfs)",
        )
    return Row("Docker engine", "ok", detail)


def _storage() -> Iterator[Row]:
    if engine_answer.refusal():
        return
    root = engine_folder(Engine.connect())
    if root is None:
        yield Row("Docker's disk", "warn", "it may be on another machine; free space there is not known")
    else:
        yield disk_row("Docker's disk", root, IMAGE_GB, COMFORTABLE_GB)


def disk_row(name: str, path: Path, least_gb: float, comfortable_gb: float) -> Row:
    """Judge the free space of the file system that holds `path`."""
    free = shutil.disk_usage(path).free / 1e9
    status: Status = "fail" if free < least_gb else "warn" if free < comfortable_gb else "ok"
    advice = "" if status == "ok" else "./run clean --image '*' frees what images take; docker builder prune frees more"
    return Row(
        name, status, f"{path}: {free:.0f} GB free; a build wants {comfortable_gb:.0f}, at least {least_gb:.0f}", advice
    )


def _machine() -> Iterator[Row]:
    cores = len(os.sched_getaffinity(0))
    yield memory_row(host_memory() / 2**30, cores)
    yield Row("cores", "ok" if cores > 1 else "warn", f"{cores}")
    compiler = shutil.which("g++")
    if compiler is None:
        yield Row(
            "g++", "warn", "missing; `--image host` and the tests compile with it", system.install_command(["g++"])
        )
    else:
        version = call(compiler, "-dumpfullversion", quiet=True, check=False).stdout.strip()
        old = version.partition(".")[0].isdigit() and int(version.partition(".")[0]) < 13
        note = "; on the host DeepGEMM and DeepEP want 13 (images bring their own)" if old else ""
        yield Row("g++", "ok", f"{version}{note}")


def memory_row(memory_gib: float, cores: int) -> Row:
    """Judge the memory by how many compiles fit in it; more than there are cores are never run."""
    fit = int(memory_gib // COMPILE_GIB)
    if not fit:
        detail = f"{memory_gib:.1f} GiB, and one compile takes {COMPILE_GIB}"
        return Row("memory", "fail", detail, "use a machine with at least 4 GiB")
    at_once = min(fit, cores)
    bound = "the cores allow no more" if fit >= cores else "the cores would allow more"
    detail = f"{memory_gib:.1f} GiB: {at_once} compiles at once ({COMPILE_GIB} GiB each; {bound})"
    return Row("memory", "ok", detail.replace(" 1 compiles", " 1 compile"))


def _cache() -> Iterator[Row]:
    root = cache.root()
    if not os.access(root, os.W_OK):
        yield Row("build cache", "fail", f"{root} cannot be written", "set DEEPINFER_BUILD_CACHE to a folder of yours")
        return
    yield disk_row("build cache", root, 5.0, 15.0)


def _gpu() -> Iterator[Row]:
    if shutil.which("nvidia-smi") is None:
        yield Row("GPU", "ok", "none here; images are built and checked without one")
        return
    try:
        query = "--query-gpu=name,compute_cap,driver_version"
        rows = call("nvidia-smi", query, "--format=csv,noheader", quiet=True, timeout=60).stdout.strip().splitlines()
    except CallFailed as failed:
        yield Row("GPU", "warn", f"nvidia-smi fails: {failed.tail[:200]}", "look at the driver's installation")
        return
    for index, row in enumerate(rows):
        fields = row.rsplit(", ", 2)
        if len(fields) < 3:
            yield Row(f"GPU {index}", "warn", f"nvidia-smi says: {row[:200]}", "look at the driver's installation")
            continue
        name, capability, driver = fields
        major = driver.partition(".")[0]
        if major.isdigit() and int(major) < CUDA13_DRIVER:
            note = f"; code for CUDA 13 needs driver {CUDA13_DRIVER} or later"
            yield Row(
                f"GPU {index}", "warn", f"{name}, {capability}, driver {driver}{note}", "update the NVIDIA driver"
            )
        elif capability != "9.0":
            yield Row(f"GPU {index}", "warn", f"{name}, compute capability {capability}: not a Hopper GPU (9.0)")
        else:
            yield Row(f"GPU {index}", "ok", f"{name}, driver {driver}")


def _registries() -> Iterator[Row]:
    from build.bases.registry import ask
    from build.matrix.load import load_matrix

    engine = Engine.connect()
    for target in load_matrix().targets.values():
        if target.vendor is None:
            continue
        answer = ask(engine, target.vendor, again=True)
        if answer.digest:
            yield Row(
                f"registry for {target.name}", "ok", f"{target.vendor}: {answer.digest[:19]}, {target.vendor_gb:g} GB"
            )
        else:
            detail = f"no {target.vendor}: {answer.reason[:120]}"
            yield Row(f"registry for {target.name}", "warn", f"{detail}; builds stand on a replica")
