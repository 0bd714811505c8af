"""`deepinfer env`: every part in a process of its own, one report, the same facts as text and as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.environment import children, report, toolchain
from deepinfer.environment.parts import PARTS

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
ROW = {"name", "status", "version", "path", "reason", "details"}


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Make an importable module of a name and source."""

    def make(name: str, source: str) -> Path:
        folder = tmp_path / "planted"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        return folder

    return make


def test_the_report_as_json(run_python: Run, package_with_c: Path) -> None:
    (package_with_c.parent / "image.json").write_text(
        json.dumps({
            "image": "cpu", "components": {
                "deep_gemm": {"version": "2.8.2", "status": "unsupported", "reason": "this torch has no CUDA"},
                "deep_ep": {"version": "2.5.0", "status": "installed", "reason": "from the cache"},
            },
        })
    )  # fmt: skip
    done = run_python("-m", "deepinfer", "env", "--json", path=[package_with_c], DEEPINFER_CACHE="/x")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["schema"] == 1 and set(seen) == {
        "schema", "deepinfer", "python", "parts", "infiniband", "ops", "cache", "variables", "image",
        "notices"}  # fmt: skip
    assert [row["name"] for row in seen["parts"]] == list(PARTS) and all(set(row) == ROW for row in seen["parts"])
    rows = {row["name"]: row for row in seen["parts"]}
    assert rows["torch"]["version"] == torch.__version__
    assert rows["torch"]["details"]["git_version"] == torch.version.git_version
    assert rows["deepinfer._C"]["status"] == "present", rows["deepinfer._C"]
    assert rows["deepinfer._C"]["path"].startswith(str(package_with_c))
    assert rows["deepinfer._C"]["details"]["abi"]["torch"] == torch.__version__
    assert seen["deepinfer"]["home"] == str(package_with_c.parent)
    assert seen["image"]["image"] == "cpu"
    if rows["deep_gemm"]["status"] == "absent":
        assert rows["deep_gemm"]["reason"] == "left out of this image: this torch has no CUDA"
    if rows["deep_ep"]["status"] == "absent":
        assert rows["deep_ep"]["reason"] == "not installed"
    assert "DEEPINFER_CACHE is not a variable of DeepInfer: did you mean DEEPINFER_CACHE_DIR?" in seen["notices"]
    sources = {row["name"]: row["source"] for row in seen["variables"]}
    values = {row["name"]: row["value"] for row in seen["variables"]}
    assert values["DEEPINFER_HOME"] == seen["deepinfer"]["home"] and values["DEEPINFER_CACHE_DIR"].startswith("/")
    assert sources["DEEPINFER_CACHE_DIR"] == "default" and sources["TRITON_CACHE_DIR"].startswith("deepinfer: ")


def test_the_report_says_where_kernels_come_from(run_python: Run) -> None:
    chosen = {"DEEPINFER_OPS_BACKEND": "triton", "DEEPINFER_OPS_FALLBACK": "norm_tl,gather_tl"}
    ops = json.loads(run_python("-m", "deepinfer", "env", "--json", **chosen).stdout)["ops"]
    assert ops == {
        "backend": "triton", "reason": "DEEPINFER_OPS_BACKEND says so", "fallbacks": ["gather_tl", "norm_tl"],
        "strict": False, "trace": ""}  # fmt: skip


def test_a_bad_backend_is_a_notice_and_the_report_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "gpu", "status": "absent", "reason": "no driver"}]
    monkeypatch.setenv("DEEPINFER_OPS_BACKEND", "tritn")
    row, (notice,) = report._ops(rows)
    assert row["backend"] == "" and "did you mean 'triton'?" in row["reason"] and row["reason"] in notice
    monkeypatch.delenv("DEEPINFER_OPS_BACKEND")
    for name in ("DEEPINFER_OPS_FALLBACK", "DEEPINFER_OPS_STRICT"):
        monkeypatch.delenv(name, raising=False)
    row, notices = report._ops(rows)
    assert (row["backend"], row["reason"], notices) == ("reference", "no driver", [])
    assert report._ops([{"name": "gpu", "status": "present", "reason": ""}])[0]["backend"] == "triton"


def test_the_report_as_text(run_python: Run) -> None:
    variables = {"DEEPINFER_DEBUG": "maybe", "DEEPINFER_CACHE_DIR": "/var/kernels", "EP_DISABLE_GIN": "1"}
    done = run_python("-m", "deepinfer", "env", **variables)
    assert done.returncode == 0, done.stderr
    assert f"torch              present  {torch.__version__} " in done.stdout
    assert "GIN off" in done.stdout
    assert "= /var/kernels  (environment)" in done.stdout
    assert "notice: DEEPINFER_DEBUG='maybe' is not allowed" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_image_is_told_in_a_few_lines() -> None:
    image = {
        "image": "cpu", "tag": "0.1.0-cpu-x", "base": {"kind": "replica", "reference": "b:1", "facts": {}},
        "components": {"_C": {"version": "0.1.0", "status": "installed"}, "deep_ep": {"status": "unsupported"},
                       "odd": 3},
        "declared": {"nccl": {"version": "2"}},
    }  # fmt: skip
    assert list(report._image_lines(image)) == [
        "image cpu 0.1.0-cpu-x", "  base: replica b:1", "  holds: _C 0.1.0", "  left out: deep_ep",
        "  differs from its base on purpose: nccl", "  `deepinfer env --json` shows all that is recorded",
    ]  # fmt: skip
    assert len(list(report._image_lines({"base": "damaged", "components": []}))) == 2


def test_the_version_that_says_more_counts(tmp_path: Path, plant: Callable[[str, str], Path]) -> None:
    folder = plant("xgrammar", "__version__ = '3.8.10'")
    for version, told in (("3.8.10.post20260721", "3.8.10.post20260721"), ("9.9", "3.8.10")):
        (folder / "xgrammar-1.dist-info").mkdir(exist_ok=True)
        (folder / "xgrammar-1.dist-info/METADATA").write_text(f"Name: xgrammar\nVersion: {version}\n")
        assert children.examine("xgrammar", 60)["version"] == told


def test_a_segmentation_fault_is_a_row(plant: Callable[[str, str], Path]) -> None:
    plant("deep_gemm", "import sys, ctypes; print('about to fall', file=sys.stderr, flush=True); ctypes.string_at(0)")
    row = children.examine("deep_gemm", 60)
    assert (row["status"], set(row)) == ("crashed", ROW)
    assert row["reason"] == "its process ended by SIGSEGV; it last said: about to fall"


def test_a_hang_is_a_row_and_leaves_no_process(
    plant: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import pathlib, subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
    plant("deep_ep", f"{source}pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\ntime.sleep(600)")
    plain = subprocess.Popen.wait

    def wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return plain(self)
        _written(tmp_path / "pid")  # its time begins when it hangs, however long it has taken to come so far
        return plain(self, 0.1)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    row = children.examine("deep_ep", 5)
    assert (row["status"], row["reason"]) == ("timeout", "gave no answer within 5 s")
    assert _ends((tmp_path / "pid").read_text()), "what it started must end with it"


def test_an_interrupt_does_not_wait_for_what_hangs(
    plant: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    source = f"import os, pathlib, time\npathlib.Path({str(there)!r}).write_text(str(os.getpid()))\n"
    plant("deep_ep", source + "time.sleep(600)")
    monkeypatch.setattr(children, "PARTS", ("numpy", "deep_ep", "deep_gemm"))

    def interrupt() -> None:
        _written(there)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        children.examine_all(300)
    assert _ends(there.read_text())


def test_a_process_that_ends_by_itself_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
        monkeypatch.setattr(child, "poll", lambda: None)  # it was still there a moment ago
        started = children._Started()
        started.add(child)
        started.end()


def _written(file: Path) -> None:
    """Wait until a file holds something."""
    deadline = time.monotonic() + 120
    while not file.exists() or not file.read_text():
        assert time.monotonic() < deadline, f"nothing was written into {file}"
        time.sleep(0.02)


def _ends(pid: str) -> bool:
    """Whether a process ends: a signal is sent at once, and the process that it ends may take a moment."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("source", "reason"),
    [("raise AssertionError('two NCCL files\\nand more')", "AssertionError: two NCCL files"),
     ("import libnothing_of_the_name", "ModuleNotFoundError: No module named 'libnothing_of_the_name'"),
     ("raise SystemExit(3)", "SystemExit: 3"), ("raise ValueError", "ValueError: no message")],
)  # fmt: skip
def test_an_import_that_raises_is_a_row(plant: Callable[[str, str], Path], source: str, reason: str) -> None:
    plant("xgrammar", source)
    row = children.examine("xgrammar", 60)
    assert (row["status"], row["reason"]) == ("failed", reason)


def test_a_process_that_ends_itself_is_a_row(plant: Callable[[str, str], Path]) -> None:
    plant("xgrammar", "import os; os._exit(0)")
    assert children.examine("xgrammar", 60)["reason"] == "its process ended without an answer"
    plant("xgrammar", "import os; os._exit(7)")
    assert children.examine("xgrammar", 60)["reason"] == "its process ended with exit code 7"


def test_what_a_part_prints_is_not_its_answer(plant: Callable[[str, str], Path]) -> None:
    folder = plant("xgrammar", "print('{\"status\": \"absent\"}'); __version__ = '9.9'")
    row = children.examine("xgrammar", 60)
    assert (row["status"], row["version"], row["path"]) == ("present", "9.9", str(folder))


def _row(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "status": "present", "version": "", "path": "", "reason": "", "details": {}, **facts}


def _notices(driver: str, cuda: str | None, nvcc: str, available: bool = True) -> list[str]:
    details = {"cuda": cuda, "cuda_available": available, "cudart": []}
    torch_row = _row("torch", version="2.11.0", details=details)
    return list(report._part_notices([_row("gpu", version=driver), torch_row, _row("toolchain", version=nvcc)]))


def test_a_package_that_the_engine_needs_is_told_with_its_command() -> None:
    details = {"cuda": None, "cuda_available": False, "cudart": []}
    rows = [_row("gpu"), _row("torch", details=details), _row("toolchain"), _row("numpy", status="absent")]
    assert list(report._part_notices(rows)) == [
        "numpy is not installed, and the engine needs it: pip install 'numpy>=1.26'"
    ]


def test_an_old_driver_is_told() -> None:
    (notice,) = _notices("570.133.20", "13.0", "")
    assert notice == "driver 570.133.20 is too old for torch (CUDA 13.0): it needs 580 or newer"
    (notice,) = _notices("570.133.20", "12.8", "13.0")
    assert "kernels compiled by nvcc" in notice
    assert _notices("580.65.06", "13.0", "13.0") == []


def test_a_gpu_that_torch_does_not_use_is_told() -> None:
    (notice,) = _notices("580.65.06", None, "", available=False)
    assert "torch 2.11.0 does not use (its CUDA: none)" in notice


def test_without_a_compiler_what_compiles_at_run_time_is_absent() -> None:
    rows = [_row("deep_gemm", version="2.8.2", path="/p"), _row("deep_ep", status="failed", reason="two NCCL files"),
            _row("triton"), _row("toolchain", status="absent", reason="no nvcc")]  # fmt: skip
    gemm, ep, triton, _ = report._without_toolchain(rows)
    assert (gemm["status"], gemm["reason"]) == ("absent", "it cannot compile its kernels: no nvcc")
    assert (gemm["version"], gemm["path"]) == ("2.8.2", "/p")
    assert (ep["reason"], triton["status"]) == ("two NCCL files", "present")
    assert report._without_toolchain([*rows[:3], _row("toolchain")])[0]["status"] == "present"


def test_the_image_says_why_it_has_no_compiler() -> None:
    row = _row("toolchain", status="absent", reason="no nvcc")
    image = {"toolchain": {"status": "none", "reason": "not wanted"}, "components": "damaged"}
    assert report._explain(row, image)["reason"] == "left out of this image: not wanted"
    assert report._explain(row, None)["reason"] == "no nvcc"
    assert report._explain(_row("deep_ep", status="absent", reason="not installed"), image)["reason"] == "not installed"


@pytest.mark.parametrize("text", ["{", "[1, 2]", "\0"])
def test_a_bad_image_json_is_a_notice(tmp_path: Path, text: str) -> None:
    (tmp_path / "image.json").write_text(text)
    found, notices = report._image(tmp_path / "image.json")
    assert found is None and len(notices) == 1 and str(tmp_path) in notices[0]


def _program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA 13.0 in a folder, a g++ on the path, and nothing else."""
    for variable in (*toolchain._NVCC, toolchain.envs.CUDA_PATH, toolchain.envs.NVCC_CCBIN):
        monkeypatch.delenv(variable.name, raising=False)
    _program(tmp_path / "cuda/bin/nvcc", "Cuda compilation tools, release 13.0, V13.0.48")
    _program(tmp_path / "bin/g++", "g++ (Debian 14.2.0-19) 14.2.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_a_whole_tool_chain(compilers: Path) -> None:
    found = toolchain.find()
    assert (found.nvcc_version, found.host_compiler_version, found.problem) == ("13.0", "14.2.0", "")


def test_tool_chains_that_cannot_compile(compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(compilers / "cuda/bin/nvcc", "release 12.8, V12.8.93")
    assert "is CUDA 12.8; DeepGEMM and DeepEP need 12.9" in toolchain.find().problem
    _program(compilers / "cuda/bin/nvcc", "no such option")
    assert "does not tell its version" in toolchain.find().problem
    (compilers / "cuda/bin/nvcc").chmod(0o644)
    assert "missing or cannot be run" in toolchain.find().problem
    monkeypatch.setenv("CUDA_HOME", "/nowhere/cuda")
    assert "/nowhere/cuda is no folder" in toolchain.find().problem
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setattr(toolchain, "USUAL_CUDA", compilers / "gone")
    assert toolchain.find().problem.startswith("no CUDA tool chain")


def test_nvcc_needs_a_host_compiler(compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (compilers / "bin/g++").unlink()
    assert "needs a C++ compiler" in toolchain.find().problem
    monkeypatch.setenv("NVCC_CCBIN", str(_program(compilers / "other/g++-13", "13.3.0")))
    assert toolchain.find().host_compiler_version == "13.3.0"


def test_nvcc_named_by_a_jit_variable(compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = _program(compilers / "side/nvcc", "release 13.1, V13.1.1")
    monkeypatch.setenv("DG_JIT_NVCC_COMPILER", str(side))
    found = toolchain.find()
    assert (found.nvcc, found.nvcc_version) == (str(side), "13.1")


@pytest.mark.gpu
def test_the_report_on_a_gpu(run_python: Run) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    seen = json.loads(run_python("-m", "deepinfer", "env", "--json").stdout)
    rows = {row["name"]: row for row in seen["parts"]}
    assert rows["gpu"]["details"]["devices"][0]["sm_count"] == torch.cuda.get_device_properties(0).multi_processor_count
    nccl = rows["torch"]["details"]["nccl"]
    assert len(nccl["files"]) == 1 and nccl["version"].startswith("2.")
