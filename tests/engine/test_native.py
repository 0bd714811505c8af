"""The loader: the extension where it fits this torch, its twin with one notice where not, and no crash in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Run = Callable[..., "subprocess.CompletedProcess[str]"]
USE = "from deepinfer import native; print(native.engine.BlockManager.__module__, native.graph_timer.__name__)"


def rewrite(package: Path, old: bytes, new: bytes) -> None:
    """Change the note in the extension, as a build for something else would have it; the length stays."""
    (file,) = (package / "deepinfer").glob("_C.*.so")
    data = file.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    file.write_bytes(data.replace(old, new))


def test_a_fitting_extension_is_used(package_with_c: Path, run_python: Run) -> None:
    done = run_python("-W", "error", "-c", USE, path=[package_with_c])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "deepinfer._C.engine deepinfer._C.graph_timer\n"


@pytest.mark.parametrize("statement", ["import deepinfer._C.engine", "from deepinfer._C.engine import BlockManager",
                                       "from deepinfer._C import graph_timer"])  # fmt: skip
def test_it_can_be_imported_by_name(package_with_c: Path, run_python: Run, statement: str) -> None:
    done = run_python("-c", f"{statement}; import deepinfer._C as c; print(c.abi['torch'])", path=[package_with_c])
    assert done.stdout == f"{torch.__version__}\n", done.stderr


def test_another_torch_is_told_with_both_versions_and_the_twin_is_used(package_with_c: Path, run_python: Run) -> None:
    version = str(torch.__version__).encode()
    rewrite(package_with_c, b'"torch": "' + version, b'"torch": "9' + version[1:])
    done = run_python("-c", f"{USE}; {USE}", path=[package_with_c])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "deepinfer._python.engine deepinfer._python.graph_timer\n" * 2
    assert done.stderr.count("RuntimeWarning") == 1
    assert f"for torch 9{torch.__version__[1:]} " in done.stderr
    assert f"this is torch {torch.__version__} " in done.stderr
    assert "--image host" in done.stderr, "the command to rebuild"


def test_the_same_version_of_another_build_is_another_torch(package_with_c: Path, run_python: Run) -> None:
    git = str(torch.version.git_version).encode()
    rewrite(package_with_c, git, b"0" * len(git))
    done = run_python("-c", USE, path=[package_with_c])
    assert "git 000000000000" in done.stderr and f"git {torch.version.git_version[:12]}" in done.stderr


def test_import_by_name_is_refused_before_the_dynamic_loader_runs(package_with_c: Path, run_python: Run) -> None:
    """The file keeps its note and loses everything that a dynamic loader could load."""
    (file,) = (package_with_c / "deepinfer").glob("_C.*.so")
    note = {"torch": "2.0.0", "torch_git": "abc", "python": "cp311", "cuda": ""}
    file.write_bytes(b"\x7fELF...DEEPINFER-C-ABI " + json.dumps(note).encode() + b"\0")
    done = run_python("-c", "import deepinfer._C", path=[package_with_c])
    assert done.returncode == 1
    assert "NativeError" in done.stderr and "built for torch 2.0.0" in done.stderr
    assert "next step" in done.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF but nothing else", b"DEEPINFER-C-ABI {not json}\0", b'DEEPINFER-C-ABI {"python": "cp311"}\0',
     b'DEEPINFER-C-ABI {"python": "cp311", "torch": '],
)  # fmt: skip
def test_a_damaged_file_is_a_reason_and_no_crash(package_with_c: Path, run_python: Run, content: bytes) -> None:
    (file,) = (package_with_c / "deepinfer").glob("_C.*.so")
    file.write_bytes(content)
    done = run_python("-c", USE, path=[package_with_c])
    assert done.stdout.startswith("deepinfer._python.engine"), done.stderr
    assert "damaged or not deepinfer's" in done.stderr


def test_a_fitting_note_on_a_broken_library_is_a_reason_too(package_with_c: Path, run_python: Run) -> None:
    (file,) = (package_with_c / "deepinfer").glob("_C.*.so")
    data = file.read_bytes()
    note = data[data.index(b"DEEPINFER-C-ABI {") :].partition(b"\0")[0]
    file.write_bytes(b"\x7fELF" + note + b"\0")
    done = run_python("-c", USE, path=[package_with_c])
    assert done.stdout.startswith("deepinfer._python.engine"), done.stderr
    assert "deepinfer._C does not load" in done.stderr


def test_an_extension_that_is_older_than_the_sources_is_told(package_with_c: Path, run_python: Run) -> None:
    twin = package_with_c / "deepinfer" / "_python" / "engine.py"
    twin.write_text(twin.read_text() + "\n\n__all__ += ['come_later']\n")
    done = run_python("-c", USE, path=[package_with_c])
    assert done.stdout == "deepinfer._python.engine deepinfer._python.graph_timer\n", done.stderr
    assert "deepinfer._C is older than its sources: it lacks engine.come_later;" in done.stderr
    done = run_python("-c", USE, path=[package_with_c], DEEPINFER_REQUIRE_C="1")
    assert done.returncode == 1 and "NativeError" in done.stderr and "it lacks engine.come_later" in done.stderr


def test_without_the_extension_the_twin_is_used(package: Path, run_python: Run) -> None:
    done = run_python("-c", USE, path=[package])
    assert done.stdout.startswith("deepinfer._python.engine")
    assert "was not built into this installation" in done.stderr
    # An editable install's finder would bring the checkout's extension to this other package.
    lone = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f)]; import deepinfer._C"
    assert run_python("-c", lone, path=[package]).stderr.endswith("No module named 'deepinfer._C'\n")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_command_tells_it_in_a_line_before_its_progress_and_not_if_it_is_quiet(
    package: Path, run_python: Run, tiny_folder: Path, quiet: bool
) -> None:
    words = ["ask", "--model", tiny_folder, "--max-tokens", "1", "--temperature", "0", *["--quiet"] * quiet, "fox"]
    done = run_python("-m", "deepinfer", *words, path=[package])
    assert done.returncode == 0 and "Warning" not in done.stderr and ".py:" not in done.stderr, done.stderr
    first, *rest = done.stderr.splitlines() or [""]
    told = "note: deepinfer._C was not built into this installation; its slower twin in Python is used. To rebuild: "
    assert first.startswith(told) if not quiet else done.stderr == ""
    assert not any("twin" in line for line in rest)


def test_an_extension_for_another_python_is_named(package: Path, run_python: Run) -> None:
    (package / "deepinfer" / "_C.cpython-39-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    done = run_python("-c", USE, path=[package])
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"_C.cpython-39-x86_64-linux-gnu.so is for another Python than this one ({here})" in done.stderr


def test_without_torch_the_twin_is_used(package_with_c: Path, run_python: Run, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = run_python("-c", USE, path=[package_with_c, blocked])
    assert done.stdout.startswith("deepinfer._python.engine"), done.stderr
    assert "no torch here" in done.stderr


def test_it_can_be_required(package: Path, package_with_c: Path, run_python: Run) -> None:
    assert run_python("-c", USE, path=[package_with_c], DEEPINFER_REQUIRE_C="1").returncode == 0
    (file,) = (package / "deepinfer").glob("_C.*.so")
    file.unlink()
    done = run_python("-c", USE, path=[package], DEEPINFER_REQUIRE_C="1")
    assert done.returncode == 1 and not done.stdout
    assert "NativeError" in done.stderr and "DEEPINFER_REQUIRE_C=1 forbids the twin" in done.stderr


def test_a_checkout_names_its_own_command(package_with_c: Path, run_python: Run) -> None:
    (package_with_c / "setup.py").touch()
    (package_with_c / "deepinfer" / "csrc").mkdir()
    version = str(torch.__version__).encode()
    rewrite(package_with_c, b'"torch": "' + version, b'"torch": "9' + version[1:])
    done = run_python("-c", USE, path=[package_with_c])
    assert f"cd {package_with_c} && {sys.executable} setup.py build_ext --inplace" in done.stderr


def test_stripping_keeps_the_note(package_with_c: Path, run_python: Run) -> None:
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("no strip here (binutils)")
    (file,) = (package_with_c / "deepinfer").glob("_C.*.so")
    size = file.stat().st_size
    code = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"
    assert run_python("-c", code, strip, "--strip-unneeded", file).returncode == 0
    assert file.stat().st_size < size
    assert run_python("-W", "error", "-c", USE, path=[package_with_c]).returncode == 0
