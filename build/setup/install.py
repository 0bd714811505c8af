"""Makes `.venv` and fills it: what is installed and why is printed, the details go to a log."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from build import cache
from build.errors import EnvironmentCannot
from build.setup import system
from build.setup.environment import Environment
from build.setup.lockfile import PYTHONS, Pin, read_pins

REASONS = {
    "build": "what every verb needs",
    "test": "torch, Triton, pytest and their like, for tests, commands and the host",
    "test-cuda": "the CUDA libraries of PyPI's torch, which is the build that pip picked",
    "engine": "DeepInfer itself, editable, with deepinfer._C compiled against that torch",
}
QUIET_S = 20.0
"""How often an installer that says nothing is told of."""
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
    for name in sets:
        if name != "engine":
            read_pins(environment.lock(name))  # a malformed lock is told before anything is made
    with environment.locked() as lock:
        if packages := missing_packages(environment, sets):
            system.install(packages, _why(packages), may_install=True)
        reason = environment.distrusted()
        if reason:
            _remove(environment, reason)
        if not environment.folder.exists():
            _create(environment, lock)
        for name in sets:
            _settle(environment, name, lock)
            for consequence in environment.wanted([name])[1:]:  # known only now: which build of torch pip picked
                _settle(environment, consequence, lock)


def _remove(environment: Environment, reason: str) -> None:
    with environment.unused() as unused:
        if not unused:
            raise EnvironmentCannot(
                f"{environment.folder} has to be made anew, and what another ./run has started is still using it",
                cause=reason,
                next_step="wait for its end, or end it, and run the same command again",
            )
        system.say(f"making {environment.folder} anew: {reason}")
        shutil.rmtree(environment.folder)


def base_python() -> Path:
    """The interpreter outside every environment that `.venv` is made with."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


def commands(environment: Environment, sets: Sequence[str]) -> list[str]:
    """What a user types to have `sets` in `.venv`."""
    missing = environment.missing(sets)
    anew = bool(environment.distrusted())
    packages = missing_packages(environment, sets)
    lines = [f"rm -rf {_quoted(environment.folder)}"] if anew else []
    if anew or not environment.folder.exists():
        lines.append(f"{_quoted(base_python())} -m venv {_quoted(environment.folder)}")
    if packages:
        lines.insert(0, system.install_command(packages))
    python = _quoted(environment.python)
    for name in missing:
        if name == "engine":
            target = _quoted(environment.repository)
            lines.append(f"{python} -m pip install --no-deps --no-build-isolation -e {target}")
        else:
            lines.append(f"{python} -m pip install --no-deps --require-hashes -r {_quoted(environment.lock(name))}")
    return lines


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _refusal(environment: Environment, sets: Sequence[str]) -> EnvironmentCannot:
    if environment.being_set_up():
        return EnvironmentCannot(
            f"{environment.folder} is being set up by another start",
            next_step="wait for its end, and run the same command again",
        )
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


def missing_packages(environment: Environment, sets: Sequence[str]) -> list[str]:
    """The distribution's packages without which `.venv` cannot get `sets`, all at once."""
    packages = missing_compiler() if "engine" in environment.missing(sets) else []
    if environment.missing(sets) and (environment.distrusted() or not environment.folder.exists()):
        packages += _missing_venv()
    return packages


def _why(packages: Sequence[str]) -> str:
    reasons = [f"{base_python()} cannot make .venv without {name}" for name in packages if name.endswith("-venv")]
    if len(reasons) < len(packages):
        reasons.append("deepinfer._C is compiled for the tests")
    return ", and ".join(reasons)


def lacking(environment: Environment, sets: Sequence[str]) -> EnvironmentCannot | None:
    """The error that `ensure` would raise for want of root: what the distribution has to give, with the command."""
    packages = missing_packages(environment, sets)
    if not packages or system.is_root():
        return None
    return EnvironmentCannot(
        f"{' '.join(packages)} is missing: {_why(packages)}",
        cause="installing it needs root",
        next_step=system.install_command(packages),
    )


def provide_compiler() -> None:
    """For the host target: install the compiler that is missing, if that can be done.

    Without it the build goes on, and says of each component that it is unsupported and why.
    """
    packages = missing_compiler()
    if packages and system.is_root():
        try:
            system.install(packages, "`--image host` compiles on this machine", may_install=True)
        except EnvironmentCannot as problem:
            system.say(f"{problem.what}; going on without")


def missing_compiler() -> list[str]:
    """The packages that hold a C++ compiler and this Python's headers, as far as they are missing."""
    packages = [] if shutil.which("c++") else ["g++"]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        packages.append(f"python3.{sys.version_info.minor}-dev")
    return packages


def _missing_venv() -> list[str]:
    return [] if importlib.util.find_spec("ensurepip") else [f"python3.{sys.version_info.minor}-venv"]


def _create(environment: Environment, lock: int) -> None:
    system.say(f"making {environment.folder} with {base_python()} (Python {platform.python_version()})")
    environment.folder.mkdir()
    environment.write_record(busy=True, anew=True)
    _run([str(base_python()), "-m", "venv", str(environment.folder)], "make the environment", lock)


def _settle(environment: Environment, name: str, lock: int) -> None:
    """Install a set if it is missing; record one that was installed by hand."""
    if environment.missing([name]):
        start = time.monotonic()
        what = _install_engine(environment, lock) if name == "engine" else _install_set(environment, name, lock)
        system.say(f"installed {what} in {time.monotonic() - start:.0f} s")
    environment.write_record(add=name)


def _install_set(environment: Environment, name: str, lock: int) -> str:
    file = environment.lock(name)
    pins = read_pins(file)
    what = f"locks/{name}.lock ({len(pins)} packages)"
    system.say(f"installing {what}: {REASONS[name]}")
    environment.write_record(busy=True)
    if "torch" in pins:
        _install_near_torch(environment, pins["torch"], lock)
    words = ["--require-hashes", "--only-binary=:all:", "--requirement", str(file)]
    _run([str(environment.python), *_PIP, *words], f"install {what}", lock)
    return what


def _install_near_torch(environment: Environment, torch: Pin, lock: int) -> None:
    """Take torch from pip's link folders where they have a file that the lock accepts.

    Between several accepted files pip prefers the index's, whose hash it knows beforehand: a CUDA build of 3 GB in
    place of a CPU build on this machine's disk.
    """
    with tempfile.TemporaryDirectory() as scratch:
        only = Path(scratch) / "torch.txt"
        hashes = " ".join(f"--hash=sha256:{value}" for value in sorted(torch.hashes))
        only.write_text(f"{torch.name}=={torch.version} {hashes}\n")
        words = ["--no-index", "--require-hashes", "--only-binary=:all:", "--requirement", str(only)]
        try:
            _run([str(environment.python), *_PIP, *words], "find torch on this machine's disk", lock)
        except EnvironmentCannot:
            system.say("torch comes from the package index: pip's link folders have no file of it that fits")


def _install_engine(environment: Environment, lock: int) -> str:
    system.say(f"installing the engine: {REASONS['engine']}, which takes a minute or two, once")
    known = environment.record()
    environment.write_record(busy=True)
    words = ["--no-build-isolation", "--editable", str(environment.repository)]
    try:
        _run([str(environment.python), *_PIP, *words], "compile deepinfer._C and install the engine", lock)
    except EnvironmentCannot:
        if known is not None:
            environment.write_record()  # it did not compile; what was installed before is whole
        raise
    return "the engine"


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
                status = program.wait(timeout=QUIET_S)
                break
            except subprocess.TimeoutExpired:
                system.say(f"still at it after {time.monotonic() - start:.0f} s: {what} (log: {log})")
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
