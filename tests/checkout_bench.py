"""`./run` in a copy of the checkout whose matrix has images of the tests' own, on the cpu replica as their base."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from build import cache
from build.bases.inspect import expected
from build.bases.replica import reference
from build.matrix.load import load_matrix

COPIED = ("run", "tasks.py", "build", "deepinfer", "images", "locks", "pyproject.toml", "setup.py", "README.md",
          "LICENSE")  # fmt: skip
SHARED = ("downloads", "rootfs", "triton")
SETUP = "from setuptools import setup\nsetup(name={name!r}, version='1.0', packages=[{name!r}])\n"
HALFWAY = "import time; print('halfway', flush=True); time.sleep({seconds})\n"


class Checkout:
    """A checkout and a cache in a folder.

    base: the reference that the images stand on; None for the cpu replica's own.
    """

    def __init__(self, folder: Path, *, base: str | None = None, own_cache: Path | None = None) -> None:
        self.root = folder / "checkout"
        self.cache = own_cache or folder / "cache"
        self.cache.mkdir(exist_ok=True)
        for name in SHARED:
            (self.cache / name).symlink_to(cache.folder(name))
        self.root.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        for name in COPIED:
            source = cache.REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=ignored)
            else:
                shutil.copy2(source, self.root / name)
        cpu = load_matrix().targets["cpu"]
        entry = yaml.safe_load((cache.REPOSITORY / "matrix.yaml").read_text())["images"]["cpu"]
        entry |= {"vendor": base or reference(cpu), "vendor_gb": 1, "expect": expected(cpu, "replica")}
        del entry["replica"]
        self._image: dict[str, Any] = entry
        self._components: dict[str, Any] = {}

    def part(self, name: str, *, code: str = "", setup: str = "", source: Mapping[str, str] | None = None) -> None:
        """Add a component: a module with this code, made by a setup.py that begins so; or from another source."""
        folder = self.root / "parts" / name
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(f'__version__ = "1.0"\n{code}')
        (folder / "LICENSE").write_text("Free for tests.\n")
        (folder / "setup.py").write_text(setup + SETUP.format(name=name))
        self._components[name] = {
            "title": name, "kind": "wheel", "version": "1.0", "source": dict(source or {"path": f"parts/{name}"}),
            "module": name, "memory_gib": 0.5, "licence": "MIT",
        }  # fmt: skip

    def images(self, images: Mapping[str, Sequence[str]]) -> None:
        """Write the matrix: images by name with their components."""
        # A copy each: YAML would write what two images share as an alias, which the matrix refuses.
        made = {name: {**copy.deepcopy(self._image), "components": list(parts)} for name, parts in images.items()}
        document = {"schema": 1, "components": self._components, "images": made}
        (self.root / "matrix.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Begin `./run WORDS`, as a shell in the foreground would: in a group of its own, which Ctrl-C reaches."""
        own = {"DEEPINFER_PYTHON": sys.executable, "DEEPINFER_BUILD_CACHE": str(self.cache), **variables}
        return subprocess.Popen(
            [str(self.root / "run"), *words], env={**os.environ, **own}, cwd="/", text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """`./run WORDS` to its end; whatever happens, no traceback is shown."""
        return ended(self.start(*words, **variables))

    def log(self, image: str, component: str) -> Path:
        """Where the output of a compile goes."""
        return self.cache / "logs" / f"{image}-{component}.log"

    def identity(self) -> str:
        """What this cache is called on its containers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DEEPINFER_BUILD_CACHE", str(self.cache))
            return cache.identity()

    def leftovers(self) -> list[Path]:
        """Files of the cache that somebody wrote half."""
        found = [path for path in self.cache.rglob("*") if path.name.startswith(".part-")]
        return [path for path in found if not any(parent.is_symlink() for parent in path.parents)]


def ended(process: subprocess.Popen[str], *, limit: float = 300) -> subprocess.CompletedProcess[str]:
    """Wait for a run; whatever happened, no traceback is shown."""
    out, err = process.communicate(timeout=limit)
    assert "Traceback" not in out + err, err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(text: str, log: Path, process: subprocess.Popen[str], *, limit: float = 120) -> None:
    """Until a log holds a text; fails when the process ends before, or after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not (log.is_file() and text in log.read_text(errors="replace")):
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        assert time.monotonic() < deadline, f"{text!r} never came: {log.read_text() if log.is_file() else 'no log'}"
        time.sleep(0.05)
