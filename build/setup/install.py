"""Makes `.venv` and fills it: what is installed and why is printed, the details go to a log."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from build import cache
from build.errors import EnvironmentCannot
from build.setup import system
from build.setup.environment import Environment
from build.setup.lockfile import PYTHONS, read_pins

REASONS = {
    "build": "what every verb needs",
    "test": "torch, Triton, pytest and their like, for tests, commands and the host",
    "test-cuda": "the CUDA libraries of PyPI's torch, which is the build that pip picked",
    "engine": "DeepInfer itself, editable, with deepinfer._C compiled against that torch",
}
_PIP = ("-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "--no-input", "--progress-bar=off")


def ensure(environment: Environment, sets: Sequence[str], *, may_install: bool) -> None:
    """See to it that `.venv` holds `sets`. Quick when it does: nothing is started and nothing is written.

    Raises:
        EnvironmentCannot: it does not, and setting it up is refused or fails; with the commands to type.
    """
    if not environment.missing(sets):
        return
    if not may_install:
        raise _refusal(environment, sets)
    _check_possible(environment)
    with environment.locked() as lock:
        reason = environment.distrusted()
        if reason:
            system.say(f"making {environment.folder} anew: {reason}")
            shutil.rmtree(environment.folder)
        if "engine" in environment.missing(sets):
            _ensure_compiler(may_install)
        if not environment.folder.exists():
            _create(environment, lock)
        for name in sets:
            for needed in environment.wanted([name]):  # asked after each: test tells whether test-cuda is needed
                if environment.missing([needed]):
                    _install(environment, needed, lock)
                else:
                    _adopt(environment, needed)


def base_python() -> Path:
    """The interpreter outside every environment that `.venv` is made with."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


def commands(environment: Environment, sets: Sequence[str]) -> list[str]:
    """What a user types to have `sets` in `.venv`."""
    if environment.distrusted():
        lines = [f"rm -rf {_quoted(environment.folder)}", f"{base_python()} -m venv {_quoted(environment.folder)}"]
    elif not environment.folder.exists():
        lines = [f"{base_python()} -m venv {_quoted(environment.folder)}"]
    else:
        lines = []
    python = _quoted(environment.python)
    for name in environment.missing(sets):
        if name == "engine":
            target = _quoted(environment.repository)
            lines.append(f"{python} -m pip install --no-deps --no-build-isolation -e {target}")
        else:
            lines.append(f"{python} -m pip install --no-deps --require-hashes -r {_quoted(environment.lock(name))}")
    return lines


def _quoted(path: Path) -> str:
    text = str(path)
    return text if all(letter.isalnum() or letter in "/._-+" for letter in text) else f"'{text}'"


def _refusal(environment: Environment, sets: Sequence[str]) -> EnvironmentCannot:
    missing = ", ".join(environment.missing(sets))
    lines = "\n    ".join(["type", *commands(environment, sets), "or leave --no-setup out: ./run does the same"])
    cause = environment.distrusted() or "./run was told --no-setup"
    return EnvironmentCannot(f"{environment.folder} lacks {missing}", cause=cause, next_step=lines)


def _check_possible(environment: Environment) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version not in PYTHONS or platform.machine() != "x86_64" or sys.platform != "linux":
        raise EnvironmentCannot(
            f"the locks have no wheels for Python {version} on {sys.platform} {platform.machine()}",
            next_step=f"use Linux x86-64 with Python {PYTHONS[0]} to {PYTHONS[-1]}",
        )
    writable = environment.folder if environment.folder.exists() else environment.repository
    if not os.access(writable, os.W_OK):
        raise EnvironmentCannot(
            f"{writable} cannot be written, so nothing can be installed there",
            cause="it belongs to another user, or its file system is read-only",
            next_step="clone the repository into a folder of yours, or set DEEPINFER_PYTHON to a Python that has "
            "what is needed",
        )


def _ensure_compiler(may_install: bool) -> None:
    packages = [] if shutil.which("c++") or shutil.which("g++") else ["g++"]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        packages.append(f"python3.{sys.version_info.minor}-dev")
    if packages:
        system.install(packages, "deepinfer._C is compiled for the tests", may_install=may_install)


def _create(environment: Environment, lock: int) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python3.{sys.version_info.minor}-venv"
        system.install([package], f"{base_python()} cannot make .venv without it", may_install=True)
    system.say(f"making {environment.folder} with {base_python()} (Python {platform.python_version()})")
    environment.folder.mkdir()
    environment.write_record(busy=True, anew=True)
    _run([str(base_python()), "-m", "venv", str(environment.folder)], "make the environment", lock)


def _install(environment: Environment, name: str, lock: int) -> None:
    environment.write_record(busy=True)
    if name == "engine":
        words = ["--no-build-isolation", "--editable", str(environment.repository)]
        what = "the engine"
    else:
        words = ["--require-hashes", "--only-binary=:all:", "--requirement", str(environment.lock(name))]
        what = f"locks/{name}.lock ({len(read_pins(environment.lock(name)))} packages)"
    system.say(f"installing {what}: {REASONS[name]}")
    start = time.monotonic()
    _run([str(environment.python), *_PIP, *words], f"install {what}", lock)
    environment.write_record(add=name)
    system.say(f"installed {what} in {time.monotonic() - start:.0f} s")


def _adopt(environment: Environment, name: str) -> None:
    """Record a set that was installed by hand, where there is no record yet."""
    known = environment.record()
    if known is None or name not in known.sets:
        environment.write_record(add=name)


def _run(argv: list[str], what: str, lock: int) -> None:
    """Run an installer, telling now and then that it still works; it inherits the lock, lest it outlive it unlocked."""
    log = cache.folder("logs") / "setup.log"
    with log.open("ab") as out:
        start_of_this = out.tell()
        program = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, pass_fds=[lock], cwd="/"
        )
        start = time.monotonic()
        while True:
            try:
                status = program.wait(timeout=20)
                break
            except subprocess.TimeoutExpired:
                system.say(f"still at it after {time.monotonic() - start:.0f} s (log: {log})")
            except BaseException:
                program.terminate()
                program.wait()
                raise
    if status == 0:
        return
    with log.open("rb") as text:
        text.seek(start_of_this)
        output = text.read().decode(errors="replace")
    raise EnvironmentCannot(
        f"cannot {what}",
        cause=_cause(output),
        next_step="read the log, put the cause right and run the same command again: it starts afresh",
        log=log,
    )


def _cause(output: str) -> str:
    """The likeliest reason in an installer's own words."""
    known = {
        "No space left on device": "the disk is full",
        "DO NOT MATCH THE HASHES": "a downloaded file is not the one that the lock names: it is damaged or was changed",
        "Could not find a version": "the package index does not answer, or does not have the version of the lock",
    }
    for sign, cause in known.items():
        if sign in output:
            return cause
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it said nothing"])[-1][:300]
