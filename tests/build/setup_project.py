"""A small repository with the real `run` and build/setup, whose locks name wheels that lie on this disk.

The wheels are packed from what the running interpreter has installed, so that the tests need no network and the
set-up runs the real venv, the real pip and the real invoke.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build.cache import REPOSITORY

BASE_PYTHON = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
TASKS = '''
"""Verbs of the small repository."""
import json, os, sys
from pathlib import Path
from invoke.tasks import task

@task
def show(c, word="none"):
    """Show what arrived."""
    seen = {"word": word, "rest": c.remainder, "cwd": str(Path.cwd()), "python": sys.executable,
            "setup": os.environ.get("DEEPINFER_SETUP"), "invoke": sys.modules["invoke"].__file__}
    print(json.dumps(seen))

@task
def build(c, image="*"):
    """Build nothing."""
    print("built")
'''


@functools.cache
def wheel_of(name: str) -> Path:
    """An installed pure-Python distribution, packed again as a wheel."""
    distribution = importlib.metadata.distribution(name)
    folder = Path(tempfile.mkdtemp(prefix="wheels-"))
    wheel = folder / f"{name}-{distribution.version}-py3-none-any.whl"
    info = f"{name}-{distribution.version}.dist-info"
    record = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in distribution.files or []:
            source = Path(str(file.locate()))
            left_out = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
            if ".." in file.parts or "__pycache__" in file.parts or file.name in left_out:
                continue
            archive.write(source, str(file))
            record.append(f"{file},,")
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return wheel


def pure_wheel(folder: Path, name: str, version: str, *, files: int = 1) -> Path:
    """A wheel of one package with so many modules: many make an install that takes a moment."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    contents = {f"{name}/__init__.py": f"VERSION = {version!r}\n"}
    contents |= {f"{name}/module{index}.py": f"VALUE = {index}\n" for index in range(1, files)}
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    return wheel


def pin(wheel: Path, digest: str = "") -> str:
    """The line of a lock for a wheel."""
    name, version = wheel.name.split("-")[:2]
    value = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{value}\n"


@dataclass
class Project:
    """The small repository, with a cache and a link folder of its own."""

    root: Path
    cache: Path
    links: Path

    @classmethod
    def make(cls, folder: Path) -> Project:
        """A repository whose build.lock names invoke and nothing else."""
        project = cls(folder / "a repository", folder / "cache", folder / "links")
        setup = project.root / "build" / "setup"
        setup.mkdir(parents=True)
        shutil.copy(REPOSITORY / "run", project.root / "run")
        for path in (REPOSITORY / "build").glob("*.py"):
            shutil.copy(path, project.root / "build")
        for path in (REPOSITORY / "build" / "setup").glob("*.py"):
            shutil.copy(path, setup)
        (project.root / "tasks.py").write_text(TASKS)
        project.lock("build", wheel_of("invoke"))
        project.lock("test")
        project.lock("test-cuda")
        return project

    def copied(self, folder: Path) -> Project:
        """The same in another folder, with what is set up in it."""
        project = Project(folder / self.root.name, folder / "cache", folder / "links")
        for old, new in ((self.root, project.root), (self.cache, project.cache), (self.links, project.links)):
            shutil.copytree(old, new, symlinks=True)
        return project

    def lock(self, name: str, *wheels: Path) -> None:
        """Write locks/NAME.lock over these wheels, and put them where pip finds them."""
        self.links.mkdir(exist_ok=True)
        for wheel in wheels:
            if wheel.parent != self.links:
                shutil.copy(wheel, self.links)
        (self.root / "locks").mkdir(exist_ok=True)
        (self.root / "locks" / f"{name}.lock").write_text("# pins\n" + "".join(pin(wheel) for wheel in wheels))

    def environment(self, **changes: str) -> dict[str, str]:
        """Variables of a start: no index, nothing of the environment that the tests run in."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("DEEPINFER_", "PIP_", "PYTHON"))
        }
        kept.pop("VIRTUAL_ENV", None)
        path = os.pathsep.join([str(Path(BASE_PYTHON).parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
        ours = {"PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.links), "PIP_CONFIG_FILE": os.devnull}
        return {**kept, **ours, "DEEPINFER_BUILD_CACHE": str(self.cache), **changes}

    def start(
        self, *words: str, cwd: Path | None = None, prefix: tuple[str, ...] = (), **changes: str
    ) -> subprocess.Popen[str]:
        """Start `./run` and do not wait."""
        return subprocess.Popen(
            [*prefix, str(self.root / "run"), *words],
            cwd=cwd or self.root,
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, cwd: Path | None = None, prefix: tuple[str, ...] = (), **changes: str) -> Ended:
        """Run `./run` to its end."""
        process = self.start(*words, cwd=cwd, prefix=prefix, **changes)
        out, err = process.communicate(timeout=600)
        return Ended(process.returncode, out, err)

    @property
    def record(self) -> Path:
        """The record of `.venv`."""
        return self.root / ".venv" / ".deepinfer.json"

    def wait_until_busy(self, process: subprocess.Popen[str]) -> None:
        """Wait until an install is under way."""
        deadline = time.monotonic() + 300
        while not self.record.exists():
            assert process.poll() is None and time.monotonic() < deadline, "no install began"
            time.sleep(0.005)


@dataclass(frozen=True)
class Ended:
    """How a start ended."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def stopped(group: int) -> Iterator[None]:
    """The processes of a group stand still in the block."""
    os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(group, signal.SIGCONT)


def until_it_waits(start: subprocess.Popen[str]) -> str:
    """What a start says until it waits for another one. It fails where the start ends before."""
    said = ""
    assert start.stderr is not None
    while "waiting for it" not in said:
        line = start.stderr.readline()
        assert line, f"it did not wait: {said}"
        said += line
    return said


def children_of(pid: int) -> bytes:
    """The command lines of a process's children, as far as they are still there."""
    said = b""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            said += Path(f"/proc/{child}/cmdline").read_bytes()
    return said
