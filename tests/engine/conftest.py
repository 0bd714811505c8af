"""Fixtures of the engine's tests: deepinfer._C built once for this torch, and clean processes to import it in."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch

import deepinfer
from deepinfer import envs

if TYPE_CHECKING:
    from deepinfer import LLM

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "deepinfer"


def _key() -> str:
    """What the compiled file depends on."""
    digest = hashlib.sha256()
    for path in [ROOT / "setup.py", *sorted((PACKAGE / "csrc").iterdir())]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    facts = (torch.__version__, torch.version.git_version, sys.version, platform.machine(), shutil.which("c++"))
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="session")
def built_c() -> Path:
    """deepinfer._C compiled against this torch; kept in the build cache by what it depends on."""
    root = Path(os.environ.get("DEEPINFER_BUILD_CACHE") or "~/.cache/deepinfer-build").expanduser()
    folder = root / "test-c" / _key()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = folder / "ready"
        if not ready.is_dir():
            shutil.rmtree(folder / "work", ignore_errors=True)
            options = ["--build-lib", str(folder / "work/lib"), "--build-temp", str(folder / "work/temp")]
            command = [sys.executable, "setup.py", "build_ext", *options]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "work/lib/deepinfer").rename(ready)
            shutil.rmtree(folder / "work")
    (file,) = ready.glob("_C.*.so")
    return file


@pytest.fixture(scope="session")
def native_c(built_c: Path) -> ModuleType:
    """deepinfer._C, loaded from where `built_c` lies."""
    loader = importlib.machinery.ExtensionFileLoader("deepinfer._C", str(built_c))
    spec = importlib.util.spec_from_file_location("deepinfer._C", built_c, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(params=["compiled", "twin"])
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    """deepinfer._C and its twin in turn, so that one test states what both promise."""
    if request.param == "twin":
        return importlib.import_module("deepinfer._python")
    module: ModuleType = request.getfixturevalue("native_c")
    return module


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run this Python with arguments, in an empty folder, with none of the variables that `import deepinfer` reads
    or sets; keywords are variables to set. Returns the finished process, whatever its exit code.
    """
    known = {v.name for v in (*envs.VARIABLES, *envs.FOREIGN)} - {"LD_LIBRARY_PATH", "DEEPINFER_BUILD_CACHE"}
    clean = {name: value for name, value in os.environ.items() if name not in known}
    folder = tmp_path / "run"
    folder.mkdir()

    def run(
        *arguments: str | Path, path: Sequence[Path] = (ROOT,), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {**clean, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    return run


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package without its sources in C++, laid out as an image has it: HOME/site/deepinfer."""
    site = tmp_path / "home" / "site"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "csrc")
    shutil.copytree(PACKAGE, site / "deepinfer", ignore=ignored)
    return site


@pytest.fixture
def package_with_c(package: Path, built_c: Path) -> Path:
    """The same with deepinfer._C in it."""
    shutil.copy(built_c, package / "deepinfer" / built_c.name)
    return package


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint, written once a session."""
    pytest.importorskip("tokenizers", reason="tokenizers is absent: no text can be tokenised")
    pytest.importorskip("safetensors", reason="safetensors is absent: no checkpoint can be written")
    from deepinfer.loading.tiny import write_tiny

    folder = tmp_path_factory.mktemp("tiny") / "model"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small, and other tests may run beside
    write_tiny(folder)
    torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="session")
def tiny_llm(tiny_folder: Path) -> LLM:
    """The tiny checkpoint, opened once a session on the CPU."""
    from deepinfer import LLM

    return LLM(tiny_folder, device="cpu", backend="reference", max_num_seqs=8)


assert Path(deepinfer.__file__).parent == PACKAGE, f"the tests would test {deepinfer.__file__}"
