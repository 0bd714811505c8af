"""Where the gates' programs run: in a fresh container of an image, or on this machine for a prefix."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from build.container import RunResult
from build.containers import Engine

_PROGRAMS = Path(__file__).with_name("programs")
ARCHIVE = "deepinfer-gates.pyz"


@functools.cache
def bundle() -> bytes:
    """The programs as one zip file that Python runs: nothing has to be installed where they run."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", "from build.gates.programs.main import main\n\nmain()\n")
        for package in ("build", "build/gates"):
            archive.writestr(f"{package}/__init__.py", "")
        for path in sorted(_PROGRAMS.glob("*.py")):
            archive.writestr(f"build/gates/programs/{path.name}", path.read_bytes())
    return buffer.getvalue()


class Launcher(Protocol):
    """Runs one program to its end."""

    def path(self, name: str) -> str:
        """Where a file given to `launch` as `name` will lie, as an absolute path."""
        ...

    def launch(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout: float = 300,
    ) -> RunResult:
        """Run `argv` from `/` with `env` laid over what is set there, and `files` (name -> bytes) beside it."""
        ...


class ContainerLauncher:
    """Fresh containers of one image, without a network.

    user: None for the image's own, else a uid that no /etc/passwd knows or "0".
    """

    def __init__(self, engine: Engine, image: str, *, user: str | None, owner: str) -> None:
        self.engine = engine
        self.image = image
        self.user = user
        self.owner = owner

    def path(self, name: str) -> str:
        """Files lie in /tmp of the container."""
        return f"/tmp/{name}"

    def launch(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout: float = 300,
    ) -> RunResult:
        """One container a call; it is removed in the end."""
        placed = {self.path(name): content for name, content in (files or {}).items()}
        return self.engine.run(
            self.image, argv, files=placed, timeout=timeout, user=self.user, env=env, owner=self.owner
        )


class LocalLauncher:
    """This machine, as the user who asks. Use as `with local_launcher() as launcher`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        """Files lie in a folder of this launcher's own."""
        return str(self.folder / name)

    def launch(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout: float = 300,
    ) -> RunResult:
        """One process a call; its output is captured, and status 124 says that it ran too long."""
        for name, content in (files or {}).items():
            (self.folder / name).write_bytes(content)
        try:
            done = subprocess.run(
                list(argv),
                cwd="/",
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return RunResult(124, "", f"still running after {timeout:.0f} s, killed")
        except OSError as problem:
            return RunResult(127, "", f"{argv[0]}: {problem.strerror}")
        status = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return RunResult(status, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


@contextlib.contextmanager
def local_launcher() -> Iterator[LocalLauncher]:
    """A launcher for this machine; its scratch folder is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="deepinfer-gates-") as folder:
        yield LocalLauncher(Path(folder))
