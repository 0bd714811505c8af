"""setup.py: the extension compiled, packed or left out, and what it says where it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
THIS = f"cp{sys.version_info.major}{sys.version_info.minor}"
OTHER = "cp399"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what packaging reads."""
    folder = tmp_path / "sources"
    shutil.copytree(ROOT / "deepinfer", folder / "deepinfer", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def no_torch(tmp_path: Path) -> Path:
    """A folder that hides torch."""
    folder = tmp_path / "no_torch"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('torch is hidden')\n")
    return folder


@pytest.fixture
def setup(run_python: Run, sources: Path) -> Run:
    """Run setup.py in the copy."""

    def run(*arguments: str | Path, path: tuple[Path, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        go = f"os.chdir({str(sources)!r}); sys.argv[0] = 'setup.py'; runpy.run_path('setup.py')"
        code = f"import os, runpy, sys; {go}"
        return run_python("-W", "ignore", "-c", code, *arguments, path=path, **variables)

    return run


def wheel(sources: Path) -> tuple[str, list[str]]:
    """The one wheel that was made: its tag, and what is in it."""
    (file,) = (sources / "dist").glob("*.whl")
    return file.stem.split("-", 2)[2], zipfile.ZipFile(file).namelist()


def test_without_the_extension_the_wheel_is_pure(setup: Run, sources: Path, no_torch: Path) -> None:
    done = setup("-q", "bdist_wheel", path=(no_torch,), DEEPINFER_SKIP_C="1")
    assert done.returncode == 0, done.stderr
    tag, names = wheel(sources)
    assert tag == "py3-none-any"
    assert "deepinfer/py.typed" in names and "deepinfer/_python/engine.py" in names
    assert not [name for name in names if name.endswith(".so") or not name.startswith("deepinfer")]


@pytest.mark.parametrize("python", [THIS, OTHER])
def test_a_compiled_file_is_packed_without_torch(
    setup: Run, sources: Path, no_torch: Path, built_c: Path, tmp_path: Path, python: str
) -> None:
    compiled = tmp_path / "_C.so"
    compiled.write_bytes(built_c.read_bytes().replace(f'"python": "{THIS}"'.encode(), f'"python": "{python}"'.encode()))
    tag = f"{python}-{python}-linux_x86_64"
    packing = {"DEEPINFER_PREBUILT_C": str(compiled), "DEEPINFER_WHEEL_TAG": tag}
    done = setup("-q", "bdist_wheel", path=(no_torch,), **packing)
    assert done.returncode == 0, done.stderr
    made, names = wheel(sources)
    assert made == tag
    (name,) = [name for name in names if name.endswith(".so")]
    assert name == f"deepinfer/_C.cpython-{python.removeprefix('cp')}-x86_64-linux-gnu.so"
    (file,) = (sources / "dist").glob("*.whl")
    assert zipfile.ZipFile(file).read(name) == compiled.read_bytes()


@pytest.mark.parametrize("kept", [b'"python"', b'"torch_git"', b'"cuda"', b"}\0"])
def test_a_compiled_file_cut_inside_of_what_it_says_is_refused(
    setup: Run, sources: Path, no_torch: Path, built_c: Path, tmp_path: Path, kept: bytes
) -> None:
    data = built_c.read_bytes()
    cut = tmp_path / "_C.so"
    cut.write_bytes(data[: data.index(kept, data.index(b"DEEPINFER-C-ABI {"))])
    done = setup("-q", "bdist_wheel", path=(no_torch,), DEEPINFER_PREBUILT_C=str(cut))
    assert done.returncode == 4
    assert "is not a compiled deepinfer._C" in done.stderr and "Traceback" not in done.stderr


def test_a_packed_wheel_works(setup: Run, sources: Path, built_c: Path, run_python: Run, tmp_path: Path) -> None:
    assert setup("-q", "bdist_wheel", DEEPINFER_PREBUILT_C=str(built_c)).returncode == 0
    (file,) = (sources / "dist").glob("*.whl")
    zipfile.ZipFile(file).extractall(tmp_path / "site")
    code = "import deepinfer._C.engine as engine; print(engine.BlockManager(5).allocate_nolock(2))"
    done = run_python("-c", code, path=[tmp_path / "site"])
    assert done.stdout == "[1, 2]\n", done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [({"DEEPINFER_PREBUILT_C": "/nowhere/_C.so"}, "is not a compiled deepinfer._C"),
     ({"DEEPINFER_PREBUILT_C": "setup.py"}, "is not a compiled deepinfer._C"),
     ({"DEEPINFER_PREBUILT_C": "BUILT", "DEEPINFER_WHEEL_TAG": f"{OTHER}-{OTHER}-linux_x86_64"}, f"is for {THIS}"),
     ({"DEEPINFER_PREBUILT_C": "BUILT", "DEEPINFER_WHEEL_TAG": "cp313-cp312-linux_x86_64"}, "is not a tag"),
     ({"DEEPINFER_PREBUILT_C": "BUILT", "DEEPINFER_WHEEL_TAG": "any"}, "is not a tag"),
     ({"DEEPINFER_WHEEL_TAG": f"{THIS}-{THIS}-linux_x86_64"}, "without DEEPINFER_PREBUILT_C")],
)  # fmt: skip
def test_what_cannot_be_packed(setup: Run, sources: Path, built_c: Path, variables: dict[str, str], said: str) -> None:
    given = {name: value.replace("BUILT", str(built_c)) for name, value in variables.items()}
    done = setup("-q", "bdist_wheel", **given)
    assert done.returncode == 4
    assert said in done.stderr and "next step: " in done.stderr and "Traceback" not in done.stderr
    assert not list(sources.glob("dist/*.whl"))


def test_without_torch_it_says_what_to_do(setup: Run, no_torch: Path, tmp_path: Path) -> None:
    done = setup("-q", "build_ext", "--build-lib", tmp_path / "lib", path=(no_torch,))
    assert done.returncode == 4
    assert "torch is hidden" in done.stderr and "--no-build-isolation" in done.stderr
    assert "DEEPINFER_SKIP_C=1" in done.stderr and "Traceback" not in done.stderr


def test_the_metadata_needs_no_torch(setup: Run, no_torch: Path) -> None:
    done = setup("--name", "--version", path=(no_torch,))
    assert done.stdout.split() == ["deepinfer-hopper", "0.1.0"], done.stderr


def test_without_a_compiler_it_says_what_to_do(setup: Run, tmp_path: Path) -> None:
    done = setup("-q", "build_ext", "--build-lib", tmp_path / "lib", CXX="no-such-compiler")
    assert done.returncode == 4
    assert "no C++ compiler: no-such-compiler was not found" in done.stderr and "Traceback" not in done.stderr


def test_what_an_earlier_build_left_is_not_packed(setup: Run, sources: Path) -> None:
    stale = sources / ".setuptools" / "lib" / "deepinfer" / "gone.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    (sources / "deepinfer" / "_C.cpython-39-x86_64-linux-gnu.so").touch()
    assert setup("-q", "bdist_wheel", DEEPINFER_SKIP_C="1").returncode == 0
    _, names = wheel(sources)
    assert "deepinfer/__init__.py" in names
    assert not [name for name in names if "gone" in name or name.endswith(".so")]


def test_the_compiled_file_is_fit_to_ship(built_c: Path) -> None:
    data = built_c.read_bytes()
    assert built_c.name.startswith(f"_C.cpython-{THIS.removeprefix('cp')}-x86_64-linux-gnu")
    assert b"libstdc++.so.6\0" in data
    assert b"libcuda.so" not in data, "nothing may need the driver at load"
    assert str(ROOT).encode() not in data, "no path of the machine that built it"


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes(setup: Run, sources: Path, built_c: Path, tmp_path: Path) -> None:
    """In another folder, without the compiler cache."""
    options = ("--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp")
    done = setup("-q", "build_ext", *options, CCACHE_DISABLE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "lib" / "deepinfer" / built_c.name).read_bytes() == built_c.read_bytes()
