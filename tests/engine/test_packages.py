"""What the engine needs beside itself: the packages' names, and how a missing one is told."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import deepinfer
from deepinfer import exactness
from deepinfer.errors import DeepInferError
from deepinfer.packages import DEPENDENCIES, need

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import os, sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == os.environ["WITHOUT"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
import importlib.util

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == os.environ["WITHOUT"] else found(name, *rest)
"""


def without(package: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A Python in which a package is not installed."""
    (folder / "sitecustomize.py").write_text(WITHOUT)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "WITHOUT": package}
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("package", "words", "said"),
    [
        ("numpy", ("deepinfer", "tiny", "t"), "`deepinfer tiny` needs the package numpy, which is not installed"),
        ("numpy", ("deepinfer", "ask", "--model", "m", "x"), "`deepinfer ask` needs the package numpy"),
        ("torch", ("deepinfer", "generate", "--model", "m"), "`deepinfer generate` needs the package torch"),
        ("tokenizers", ("deepinfer", "tiny", "t"), "writing a checkpoint needs the package tokenizers"),
        ("safetensors", ("deepinfer", "tiny", "t"), "writing a checkpoint needs the package safetensors"),
        ("torch", ("deepinfer.exactness", "--model", "m"), "this needs the package torch, which is not installed"),
    ],
)
def test_a_missing_package_is_told(package: str, words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = without(package, tmp_path, "-m", *words)
    assert done.returncode == 4 and done.stderr.startswith(f"error: {said}"), done.stderr
    assert "pip install" in done.stderr and "Warning" not in done.stderr and not (tmp_path / "t").exists()


def test_a_program_that_asks_for_the_engine_is_told_too(tmp_path: Path) -> None:
    done = without("numpy", tmp_path, "-c", "from deepinfer import LLM")
    assert "deepinfer.LLM needs the package numpy, which is not installed" in done.stderr
    assert "pip install 'numpy>=1.26'" in done.stderr and "UserWarning" not in done.stderr


def test_the_command_that_needs_nothing_runs_without(tmp_path: Path) -> None:
    done = without("torch", tmp_path, "-m", "deepinfer", "--version")
    assert done.stdout == f"deepinfer {deepinfer.__version__}\n"


def test_a_package_that_is_damaged_is_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizers.py").write_text("import a_module_that_is_nowhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    with pytest.raises(DeepInferError, match="cannot be imported: No module named 'a_module_that_is_nowhere'"):
        need("tokenizers", "text")


def test_the_installer_brings_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == list(DEPENDENCIES)
    for image in ("cpu", "flagos", "flagtree", "host", "vllm"):
        assert set(DEPENDENCIES) <= set((ROOT / "images" / image / "runtime.in").read_text().splitlines())
    for page in ("README.md", "docs/engine.md"):
        assert all(name.partition(">")[0] in (ROOT / page).read_text() for name in DEPENDENCIES)


def test_what_the_comparison_offers_is_there() -> None:
    assert all(getattr(exactness, name) is not None for name in exactness.__all__)
    assert sorted(name for names in exactness._MODULES.values() for name in names) == exactness.__all__
