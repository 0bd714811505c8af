"""Warm caches: what `deepinfer warm` compiles is what a launch on a Hopper GPU looks up, wherever the entries lie."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from build.triton_versions import triton_dir
from deepinfer.probe.checks import CHECKS
from deepinfer.warm.stand_in import cuda_functions

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "tests" / "warm_launch.py"
VERSIONS = ("3.5.1", "3.6.0", "3.7.1")
KERNELS = sum(len(check.cases) for check in CHECKS)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def _warm(run_python: Run, version: str, only: str = "probe", **variables: str) -> dict[str, Any]:
    done = run_python(
        "-m", "deepinfer", "warm", "--json", "--only", only, path=[ROOT, triton_dir(version)], **variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["triton"] == version
    return report


def _launch(run_python: Run, version: str, **variables: str) -> dict[str, Any]:
    done = run_python(LAUNCH, path=[ROOT, triton_dir(version)], **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["launches"] == KERNELS
    return found


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Run], Path]:
    """A warm cache of each Triton, filled once."""
    made: dict[str, Path] = {}

    def fill(version: str, run_python: Run) -> Path:
        if version not in made:
            cache = tmp_path_factory.mktemp("warm")
            report = _warm(run_python, version, DEEPINFER_CACHE_DIR=str(cache))
            assert report["kernels"] == {"compiled": KERNELS, "found": 0}
            assert report["modules"]["compiled"] > 0
            assert report["without_modules"] is None
            made[version] = cache / "triton"
        return made[version]

    return fill


@pytest.fixture
def home(filled: Callable[[str, Run], Path], run_python: Run, tmp_path: Path) -> Callable[[str], Path]:
    """HOME with a copy of the warm cache of a Triton, elsewhere than where it was made."""

    def make(version: str) -> Path:
        folder = tmp_path / "home"
        shutil.copytree(filled(version, run_python), folder / "warm" / "triton")
        return folder

    return make


@pytest.mark.parametrize("version", VERSIONS)
def test_a_launch_compiles_nothing_after_it_and_a_second_run_neither(
    version: str, filled: Callable[[str, Run], Path], run_python: Run
) -> None:
    cache = filled(version, run_python)
    files = _files(cache)
    found = _launch(run_python, version, DEEPINFER_CACHE_DIR=str(cache.parent))
    assert found["kernels"] == {"compiled": 0, "found": KERNELS}
    assert found["modules"]["compiled"] == 0
    again = _warm(run_python, version, DEEPINFER_CACHE_DIR=str(cache.parent))
    assert again["kernels"] == found["kernels"]
    assert again["modules"] == found["modules"]
    (provider,) = again["providers"]
    assert (provider["name"], provider["kernels"], provider["problems"]) == ("probe", KERNELS, [])
    assert _files(cache) == files


@pytest.mark.parametrize("version", VERSIONS)
def test_entries_of_the_image_are_found_beside_an_empty_cache_and_nothing_is_written(
    version: str, home: Callable[[str], Path], run_python: Run, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    variables = {"DEEPINFER_HOME": str(home(version)), "DEEPINFER_CACHE_DIR": str(cache)}
    found = _launch(run_python, version, **variables)
    assert found["kernels"] == {"compiled": 0, "found": KERNELS}
    assert found["modules"]["compiled"] == 0
    report = _warm(run_python, version, **variables)
    assert report["kernels"] == found["kernels"]
    assert {Path(folder).parent for folder in report["entries"].values()} == {tmp_path / "home" / "warm" / "triton"}
    assert not cache.exists()


def test_the_cache_need_not_be_writable_where_all_entries_are_warm(
    home: Callable[[str], Path], run_python: Run
) -> None:
    # A folder below a file can be made by nobody, root included.
    found = _launch(run_python, "3.6.0", DEEPINFER_HOME=str(home("3.6.0")), TRITON_CACHE_DIR="/dev/null/triton")
    assert found["kernels"] == {"compiled": 0, "found": KERNELS}


def test_what_another_triton_compiled_is_not_taken(
    home: Callable[[str], Path], run_python: Run, tmp_path: Path
) -> None:
    variables = {"DEEPINFER_HOME": str(home("3.6.0")), "DEEPINFER_CACHE_DIR": str(tmp_path / "cache")}
    assert _launch(run_python, "3.7.1", **variables)["kernels"] == {"compiled": KERNELS, "found": 0}
    assert _launch(run_python, "3.7.1", **variables)["kernels"] == {"compiled": 0, "found": KERNELS}


def test_damaged_entries_are_compiled_anew_into_the_cache(
    home: Callable[[str], Path], run_python: Run, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    variables = {"DEEPINFER_HOME": str(home("3.6.0")), "DEEPINFER_CACHE_DIR": str(cache)}
    warm = tmp_path / "home" / "warm" / "triton"
    next(warm.rglob("dot.cubin")).unlink()
    next(warm.rglob("__grp__add.json")).write_text("{")
    launcher = next(warm.rglob("__triton_launcher.*.so"))
    launcher.write_bytes(b"\x7fELF")
    found = _launch(run_python, "3.6.0", **variables)
    assert found["kernels"] == {"compiled": 2, "found": KERNELS - 2}
    assert found["modules"]["compiled"] == 1
    assert len({path.split("/")[1] for path in _files(cache)}) == 3
    assert _launch(run_python, "3.6.0", **variables)["kernels"] == {"compiled": 0, "found": KERNELS}


def test_always_compile_writes_into_the_cache(home: Callable[[str], Path], run_python: Run, tmp_path: Path) -> None:
    variables = {"DEEPINFER_HOME": str(home("3.7.1")), "DEEPINFER_CACHE_DIR": str(tmp_path / "cache")}
    found = _launch(run_python, "3.7.1", TRITON_ALWAYS_COMPILE="1", **variables)
    assert found["kernels"] == {"compiled": KERNELS, "found": 0}


def test_a_cache_manager_of_the_users_own_stays(home: Callable[[str], Path], run_python: Run, tmp_path: Path) -> None:
    own = "triton.runtime.cache:FileCacheManager"
    report = _warm(
        run_python, "3.7.1", DEEPINFER_HOME=str(home("3.7.1")), DEEPINFER_CACHE_DIR=str(tmp_path / "cache"),
        TRITON_CACHE_MANAGER=own,
    )  # fmt: skip
    assert report["kernels"] == {"compiled": KERNELS, "found": 0}


def test_without_a_warm_folder_triton_keeps_its_own_manager(run_python: Run) -> None:
    code = "import deepinfer, os; print(os.environ.get('TRITON_CACHE_MANAGER'), deepinfer.activation.activate().warm)"
    assert run_python("-c", code, DEEPINFER_HOME="/nonexistent").stdout == "None None\n"


def test_env_tells_where_warm_entries_are(home: Callable[[str], Path], run_python: Run) -> None:
    folder = home("3.7.1")
    (folder / "image.json").write_text(json.dumps({"image": "cpu", "warm": {"kernels": 9, "target": "sm_90a"}}))
    done = run_python("-m", "deepinfer", "env", DEEPINFER_HOME=str(folder))
    assert f", and warm kernels in {folder}/warm/triton" in done.stdout
    assert "warm: 9 Triton kernels for sm_90a" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("TRITON_CACHE_MANAGER"))
    assert "= deepinfer.warm.cache:WarmCacheManager  (deepinfer: kernels that came with the image" in line


def test_without_a_compiler_the_kernels_are_warmed_all_the_same(run_python: Run, tmp_path: Path) -> None:
    report = _warm(run_python, "3.7.1", DEEPINFER_CACHE_DIR=str(tmp_path / "cache"), CC="/nonexistent/cc")
    assert report["ok"]
    assert report["kernels"] == {"compiled": KERNELS, "found": 0}
    assert report["modules"] == {"compiled": 0, "found": 0}
    assert report["without_modules"] == "/nonexistent/cc cannot be started: No such file or directory"


def test_a_kernel_that_does_not_compile_is_named_and_the_others_are_done(run_python: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\n"
        "from deepinfer.probe import checks, kernels\n"
        "from deepinfer.cli import main\n"
        "checks.CHECKS[1].cases[0].constants['K'] = 3\n"
        "sys.exit(main(['warm', '--only', 'probe']))\n"
    )
    done = run_python(broken, DEEPINFER_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 5, done.stdout + done.stderr
    assert "    FAILED: dot[fp16]: CompilationError" in done.stdout
    assert f"  kernels: {KERNELS - 1} compiled, 0 found" in done.stdout


def test_kernels_of_the_engine_are_warmed_too(run_python: Run, tmp_path: Path) -> None:
    variables = {"DEEPINFER_CACHE_DIR": str(tmp_path / "cache")}
    first = _warm(run_python, "3.7.1", "ops.gather,probe", **variables)
    names = {provider["name"]: provider["kernels"] for provider in first["providers"]}
    assert list(names) == ["ops.gather", "probe"]
    assert names["ops.gather"] > 0
    assert first["kernels"] == {"compiled": KERNELS + names["ops.gather"], "found": 0}
    again = _warm(run_python, "3.7.1", "ops.gather,probe", **variables)
    assert again["kernels"] == {"compiled": 0, "found": first["kernels"]["compiled"]}


def test_a_name_that_no_kernels_have_is_a_usage_error(run_python: Run) -> None:
    done = run_python("-m", "deepinfer", "warm", "--only", "probe,ops.gater")
    assert done.returncode == 1
    assert "next step: did you mean ops.gather?" in done.stderr


def test_the_interpreter_compiles_nothing_and_that_is_said(run_python: Run) -> None:
    done = run_python("-m", "deepinfer", "warm", TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "next step: unset TRITON_INTERPRET" in done.stderr


def test_without_triton_it_says_so(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('no Triton here')\n")
    done = run_python("-m", "deepinfer", "warm", path=[tmp_path, ROOT])
    assert done.returncode == 4
    assert "kernels cannot be compiled: no Triton here" in done.stderr
    assert "Traceback" not in done.stderr


def test_functions_of_the_cuda_library_are_read_from_its_header() -> None:
    header = """
    #define cuMemAlloc                          cuMemAlloc_v2
    #define cuMemcpy                            __CUDA_API_PTDS(cuMemcpy)
        #define cuStreamBeginCapture            __CUDA_API_PTSZ(cuStreamBeginCapture_v2)
    #define cuda_version 13
    CUresult CUDAAPI cuInit(unsigned int Flags);
    CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config,
    typedef size_t (CUDA_CB *CUoccupancyB2DSize)(int blockSize);
    """
    names = ["cuInit", "cuLaunchKernelEx", "cuMemAlloc_v2", "cuMemcpy", "cuStreamBeginCapture_v2"]
    assert cuda_functions(header) == names


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_probe_compiles_nothing_after_it(run_python: Run, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    variables = {"DEEPINFER_CACHE_DIR": str(cache)}
    warmed = run_python("-m", "deepinfer", "warm", "--json", "--only", "probe", **variables)
    assert warmed.returncode == 0, warmed.stderr
    assert json.loads(warmed.stdout)["without_modules"] is None
    files = _files(cache)
    done = run_python("-m", "deepinfer", "probe", "--json", **variables)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ran"] == "7/7"
    assert report["cache"]["kernels"] == {"compiled": 0, "found": KERNELS}
    assert report["cache"]["modules"]["compiled"] == 0
    assert _files(cache) == files


ENGINE = """
import json
from deepinfer.ops.cases import cases
from deepinfer.ops.execution import run
from deepinfer.warm import cache

record = cache.count()
for case in (case for case in cases() if case.engine):
    run(case.factory, case.call(), "triton", "cuda")
print(json.dumps({"kernels": record.kernels.to_json(), "modules": record.modules.to_json()}))
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_engines_kernels_are_all_found_after_it(run_python: Run, tmp_path: Path) -> None:
    variables = {"DEEPINFER_CACHE_DIR": str(tmp_path / "cache")}
    warmed = run_python("-m", "deepinfer", "warm", "--json", **variables)
    assert warmed.returncode == 0, warmed.stderr
    done = run_python("-c", ENGINE, **variables)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kernels"]["compiled"] == 0
    assert counts["kernels"]["found"] > 0
    assert counts["modules"]["compiled"] == 0
