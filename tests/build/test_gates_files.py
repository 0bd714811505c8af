"""What the gates make of the files of an image, and of those that a process maps: unresolved, twice, or not ours."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build.gates.artefacts import expected_files
from build.gates.judge.binaries import judge_linked, judge_readable
from build.gates.judge.processes import judge_imports, judge_library_path, judge_maps, judge_ours
from build.gates.judge.rows import Ending, Verdicts
from build.gates.place import other_cudart
from build.inspection import Library
from build.matrix.model import Component, Source, Target
from build.plan import Cell, TargetPlan
from build.wheels.wheelhouse import Wheelhouse
from tests.build.gates_ground import OURS, PLACE, base_inspection, image_plan, import_line, one


def test_readable_blames_the_module_of_the_file() -> None:
    verdicts = Verdicts()
    found = {"path": f"{OURS}/deep_gemm/_C.so", "mode": "-rw-------", "owner": "0"}
    access = {"uid": 12345, "unreadable": [found], "cache": "Permission denied: /cache"}
    judge_readable(verdicts, PLACE, ["deepinfer", "deep_gemm"], access)
    assert verdicts.blamed["deep_gemm"] == "readable"
    assert "/cache" not in verdicts.blamed
    assert f"{OURS}/deep_gemm/_C.so: -rw-------, owner 0, closed to uid 12345" in verdicts.results[0].detail


def _library(module: str, **changes: Any) -> dict[str, Any]:
    needed = [{"soname": "libc.so.6", "how": "loaded"}, {"soname": "libstdc++.so.6", "how": "loaded"}]
    facts = {"needed": needed, "undefined": 9, "lost": [], "cxx": True, "static_cxx": []}
    return {"path": f"{OURS}/{module}/_C.so", "module": module, **facts, **changes}


def test_the_driver_is_not_asked_of_an_image() -> None:
    needed = [*_library("a")["needed"], {"soname": "libcuda.so.1", "how": "driver", "error": "no file"}]
    lost = [{"name": "cuGetProcAddress", "plain": "cuGetProcAddress", "version": ""}]
    verdicts = Verdicts()
    judge_linked(verdicts, {"libraries": [_library("a", needed=needed, lost=lost)]}, 1.0, "")
    assert [result.state for result in verdicts.results] == ["passed"] * 3
    assert "libcuda.so.1 comes with the driver" in one(verdicts, "needed").detail


def test_a_cuda_symbol_is_missed_where_the_module_does_not_need_the_driver() -> None:
    lost = [{"name": "cuGetProcAddress", "plain": "cuGetProcAddress", "version": ""}]
    verdicts = Verdicts()
    judge_linked(verdicts, {"libraries": [_library("a", lost=lost)]}, 1.0, "")
    assert [result.name for result in verdicts.results if not result.ok] == ["symbols"]


def test_each_fault_of_a_file_fails_one_gate() -> None:
    missing = [{"soname": "libnccl.so.2", "how": "missing", "error": "no such file"}]
    static = [need for need in _library("c")["needed"] if "stdc" not in need["soname"]]
    lost = [{"name": "_ZN2at1fEv", "plain": "at::f()", "version": "V1"}]
    libraries = [
        _library("a", needed=missing, lost=lost), _library("b", lost=lost), _library("c", needed=static),
        {"path": f"{OURS}/d/_C.so", "module": "d", "error": f"{OURS}/d/_C.so is empty"},
    ]  # fmt: skip
    verdicts = Verdicts()
    judge_linked(verdicts, {"libraries": libraries}, 1.0, "")
    assert verdicts.blamed == {"a": "needed", "d": "needed", "b": "symbols", "c": "libstdcxx_shared"}
    assert f"{OURS}/b/_C.so: undefined at::f() (version V1)" in one(verdicts, "symbols").detail
    assert f"{OURS}/a/_C.so -> libnccl.so.2: no such file" in one(verdicts, "needed").detail


def test_a_torch_that_does_not_import_fails_what_needs_it() -> None:
    verdicts = Verdicts()
    judge_linked(verdicts, {"torch_error": "ImportError: libtorch", "libraries": []}, 1.0, "")
    judge_linked(verdicts, {}, 1.0, "")
    assert [result.ok for result in verdicts.results] == [False] * 6
    assert "it printed nothing that can be read" in verdicts.results[3].detail


def test_one_file_a_soname_is_one_runtime() -> None:
    verdicts = Verdicts()
    files = ("/a/libnccl.so.2", "/b/libcudart.so.13", "/c/libcudart.so.12")
    judge_maps(verdicts, [import_line("torch", files=files)], seconds=1.0, cuda=True)
    assert [result.state for result in verdicts.results] == ["passed", "passed"]


def test_two_files_of_a_soname_are_named_and_explain_deep_ep() -> None:
    lines = [
        import_line("torch", files=("/a/libnccl.so.2",)),
        import_line("deep_ep", "AssertionError: Duplicate NCCL runtime", files=("/a/libnccl.so.2", "/b/libnccl.so.2")),
    ]
    verdicts = Verdicts()
    judge_maps(verdicts, lines, seconds=1.0, cuda=False)
    assert "/a/libnccl.so.2 and /b/libnccl.so.2" in one(verdicts, "one_nccl").detail
    judge_imports(verdicts, {"deep_ep": Ending(1, stderr="AssertionError: Duplicate NCCL runtime")}, Ending(0), {})
    assert one(verdicts, "imports").skipped_reason == "deep_ep already fails one_nccl"


def test_a_cuda_torch_without_a_runtime_and_a_cpu_torch_differ() -> None:
    verdicts = Verdicts()
    judge_maps(verdicts, [import_line("torch")], seconds=1.0, cuda=True)
    assert [result.ok for result in verdicts.results] == [False, False]
    verdicts = Verdicts()
    judge_maps(verdicts, [import_line("torch")], seconds=1.0, cuda=False)
    assert [result.skipped_reason for result in verdicts.results] == [
        "a CPU build: no libnccl.so is mapped", "a CPU build: no libcudart.so is mapped",
    ]  # fmt: skip


def test_a_process_that_ended_before_torch_fails_imports_only() -> None:
    verdicts = Verdicts()
    together = Ending(-11, "SIGSEGV", stdout='{"starts": "torch"}\n')
    judge_maps(verdicts, together.lines(), seconds=1.0, cuda=True)
    judge_imports(verdicts, {"deepinfer": Ending(0)}, together, {"deep_ep": "no NCCL"})
    assert [result.name for result in verdicts.results if not result.ok] == ["imports"]
    assert "import torch after the others in one process: killed by SIGSEGV" in one(verdicts, "imports").detail


def test_what_fails_only_beside_the_others_is_told() -> None:
    steps = [{"starts": "a"}, {"module": "a", "error": ""}, {"starts": "b"}, {"module": "b", "error": "clash"}]
    together = Ending(0, stdout="a greeting\n" + "\n".join(json.dumps(step) for step in steps))
    verdicts = Verdicts()
    judge_imports(verdicts, {"a": Ending(0), "b": Ending(0)}, together, {})
    assert "import b after the others in one process: clash" in verdicts.results[0].detail


def test_files_from_elsewhere_or_with_other_bytes_are_not_ours() -> None:
    lines = [
        import_line("deep_gemm", file="/usr/lib/p/deep_gemm/__init__.py"),
        import_line("deepinfer", file="/usr/lib/p/deepinfer/__init__.py"),
        import_line("deep_ep", file=f"{OURS}/deep_ep/__init__.py"),
    ]
    hashes = {f"{OURS}/deep_ep/a.cuh": "a" * 64, f"{OURS}/deep_ep/b.cuh": "b" * 64}
    expected = {"deep_ep": {"deep_ep/a.cuh": "f" * 64, "deep_ep/b.cuh": "b" * 64, "deep_ep/c.cuh": "c" * 64}}
    verdicts = Verdicts()
    judge_ours(verdicts, PLACE, lines, hashes, expected)
    assert verdicts.results[0].detail.splitlines()[:-1] == [
        f"import deep_gemm loads /usr/lib/p/deep_gemm/__init__.py, not a file below {OURS}/deep_gemm",
        f"{OURS}/deep_ep/a.cuh has sha256 aaaaaaaaaaaa, its artefact ffffffffffff",
        f"{OURS}/deep_ep/c.cuh of the artefact is not there, or cannot be read",
    ]


def test_an_image_is_judged_by_the_artefacts_that_it_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "deep_gemm-2.8.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("deep_gemm/__init__.py", "x = 1\n")
        archive.writestr("deep_gemm-2.8.2.dist-info/RECORD", "")
    Wheelhouse(tmp_path / "cache" / "wheelhouse").put("e" * 64, wheel, {})
    document = json.dumps({"components": {"deep_gemm": {"key": "e" * 64}}})
    wanted = {"deep_gemm": {"deep_gemm/__init__.py": hashlib.sha256(b"x = 1\n").hexdigest()}}
    assert expected_files(image_plan(), document) == wanted
    assert (
        expected_files(image_plan(), "")
        == expected_files(image_plan(), "[]")
        == expected_files(image_plan(), "{")
        == {}
    )


def test_another_compile_of_the_same_key_says_nothing_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    house = Wheelhouse(tmp_path / "cache" / "wheelhouse")
    extension = Component("_C", "_C", "extension", "1", Source(path="."), module="deepinfer._C")
    plan = TargetPlan(
        Target("x", "x", "image", ("_C",)), base_inspection(), "replica", (Cell("x", extension, "build"),), ""
    )
    other = tmp_path / "_C.so"
    other.write_bytes(b"compiled elsewhere")
    house.put("e" * 64, other, {})
    recorded = hashlib.sha256(b"compiled here").hexdigest()
    document = json.dumps({"components": {"_C": {"key": "e" * 64, "artefact": recorded}}})
    assert expected_files(plan, document) == {"deepinfer._C": {"deepinfer/_C.so": recorded}}
    # Of a wheel the record knows the whole only: its files are then judged by their place.
    wheel = json.dumps({"components": {"deep_gemm": {"key": "e" * 64, "artefact": recorded}}})
    assert expected_files(image_plan(), wheel) == {}


def test_the_library_path() -> None:
    base = base_inspection(cudart=(Library("/opt/triton/l", "libcudart.so.12"), Library("/x", "libcudart.so.13")))
    library = other_cudart(base)
    assert (library, other_cudart(base_inspection()), other_cudart(base_inspection(cuda=None))) == (
        "libcudart.so.12",
        "",
        "",
    )
    files = ("/t/libcudart.so.13", "/opt/deepinfer/lib/libcudart.so.12")
    step = {"library": "", "mapped": import_line("x", files=files)["mapped"]}
    verdicts = Verdicts()
    judge_library_path(verdicts, library, {"unset": Ending(0, stdout="/opt/deepinfer/lib/libcudart.so.12")}, [step])
    lost = Ending(1, stderr="OSError: libcudart.so.12: cannot open shared object file")
    judge_library_path(verdicts, library, {"unset": lost}, [step])
    judge_library_path(verdicts, library, {}, [{"library": "OSError: no", "mapped": []}])
    judge_library_path(verdicts, "", {}, [])
    assert [result.state for result in verdicts.results] == ["passed", "failed", "failed", "n/a"]
    assert "libcudart.so.12 with unset: status 1: OSError" in verdicts.results[1].detail
