"""What an older CUDA changes: headers laid over the base's, shims, and constraints of upstream's that are gone past."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from build import cuda_headers
from build.cache import REPOSITORY
from build.inspection import Inspection, Library
from build.matrix.load import load_matrix
from build.plan import Cell, TargetPlan, make_plan
from build.sources import collect_sources

MATRIX = load_matrix()
SHIM = "images/shims/cuda12_memcpy_batch.hpp"
SITE = "/usr/local/lib/python3.13/dist-packages"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
SEEN = Inspection(
    "sha256:" + "a" * 64, "deepinfer-base:flagos-replica", "Debian", "x86_64", "3.13.5", "cp313",
    ".cpython-313-x86_64-linux-gnu.so", "/usr/bin/python3", SITE, torch="2.9.0+cu128", torch_git="0" * 40,
    torch_path=f"{SITE}/torch", cuda="12.8", triton="3.5.1", nccl=(Library(NCCL, "libnccl.so.2", "2.27.5"),),
    nccl_loaded=NCCL, nccl_version="2.27.5", nccl_header="2.27.5", gcc="14.2.0", glibc="2.41",
    distributions={"nvidia-cuda-runtime-cu12": "12.8.90", "nvidia-nccl-cu12": "2.27.5"},
)  # fmt: skip


def plan(name: str = "flagos", *, sources: dict[str, str] | None = None, **changes: Any) -> TargetPlan:
    """The plan of the real matrix for a base like flagos' replica, with `changes` of its facts."""
    target = MATRIX.targets[name]
    given = collect_sources(MATRIX, target, REPOSITORY) | (sources or {})
    return make_plan(
        MATRIX, target, target.components, inspection=dataclasses.replace(SEEN, **changes),
        base_kind="host" if target.kind == "host" else "replica", sources=given, cached=lambda key: False,
    )  # fmt: skip


def cells(made: TargetPlan) -> dict[str, Cell]:
    return {cell.component.name: cell for cell in made.cells}


def test_every_component_is_built_and_says_what_it_goes_past() -> None:
    found = cells(plan())
    assert {cell.status for cell in found.values()} == {"build"}
    assert found["nccl_cu12"].notes == ("replaces NCCL 2.27.5 in the file that torch loads",)
    assert found["deep_gemm"].notes == ("compiled with the headers of CUDA 12.9, laid over the base's 12.8",)
    notes = "\n".join(found["deep_ep"].notes)
    assert "upstream states torch >= 2.10, the base has 2.9.0+cu128: it compiles against torch 2.9" in notes
    assert "upstream states CUDA >= 13.1, the base has 12.8: " in notes
    assert f"compiled with {SHIM} before every other header" in notes


@pytest.mark.parametrize(
    ("changes", "shims"), [({}, (SHIM,)), ({"cuda": "13.0", "nvcc": "13.0.88", "cuda_home": "/usr/local/cuda"}, ())]
)
def test_a_shim_is_only_taken_where_it_is_meant_for(changes: dict[str, Any], shims: tuple[str, ...]) -> None:
    cell = cells(plan(**changes))["deep_ep"]
    assert cell.component.shims == shims
    assert ("shims" in cell.inputs) is bool(shims)


def test_shim_and_headers_are_in_the_keys_of_this_base_only() -> None:
    before = cells(plan())
    for digest, affected in {
        "shims:deep_ep": {"deep_ep"},
        "headers": {"_C", "deep_gemm", "deep_ep"},
        "cuda:12.9": {"_C", "deep_gemm", "deep_ep"},
        "cuda:13.0": set(),
    }.items():
        after = cells(plan(sources={digest: "f" * 64}))
        assert {name for name in before if before[name].key != after[name].key} == affected, digest
    newer = {"cuda": "13.0", "nccl_version": "2.28.9"}
    for digest in ("shims:deep_ep", "headers", "cuda:12.9"):
        one, other = plan("flagtree", **newer), plan("flagtree", sources={digest: "f" * 64}, **newer)
        assert [cell.key for cell in one.cells] == [cell.key for cell in other.cells], digest


def test_a_tool_kit_of_the_base_counts_and_so_does_its_age() -> None:
    kit = {"cuda_home": "/usr/local/cuda"}
    old = cells(plan(nvcc="12.8.93", **kit))
    new = cells(plan(nvcc="12.9.86", **kit))
    foreign = cells(plan(nvcc="13.0.88", **kit))
    assert "laid over the base's 12.8" in old["deep_gemm"].notes[0]
    assert new["deep_gemm"].notes == () and new["deep_gemm"].status == "build"
    assert "laid over the base's 12.8" in foreign["deep_gemm"].notes[0], "headers of another major version are no use"
    assert len({found["deep_gemm"].key for found in (cells(plan()), old, new, foreign)}) == 4


def test_the_host_compiles_with_what_it_has() -> None:
    kit = {"cuda_home": "/usr/local/cuda", "nvcc": "12.8.93"}
    found = cells(plan("host", **kit))
    assert found["deep_gemm"].reason == "needs CUDA >= 12.9, this machine has 12.8"
    assert cells(plan("host", **{**kit, "nvcc": "12.9.86"}))["deep_gemm"].status == "build"


@pytest.mark.parametrize(
    ("own", "locked", "over"),
    [
        ("12.8", ["12.9", "13.0"], "12.9"),
        ("12.8", ["12.9", "12.10"], "12.10"),
        ("12.9", ["12.9", "13.0"], None),
        ("13.0", ["12.9", "13.0"], None),
        ("13.1", ["12.9", "13.0"], None),
        ("11.8", ["12.9", "13.0"], None),
        ("12.8", [], None),
        (None, ["12.9"], None),
    ],
)
def test_which_headers_are_laid_over(own: str | None, locked: list[str], over: str | None) -> None:
    assert cuda_headers.laid_over(own, locked) == over


def test_locked_headers_win_over_older_ones_and_leave_the_others(tmp_path: Path) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("lay_over", REPOSITORY / "images/builder/lay_over.py")
    assert spec is not None and spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    base, include, locked = tmp_path / "base", tmp_path / "home/include", tmp_path / "locked"
    for path, text in {
        base / "cuda.h": "12.8",
        locked / "cuda_runtime/include/cuda.h": "12.9",
        locked / "cuda_cccl/include/cuda/std/new.h": "12.9",
        locked / "cuda_runtime/lib/libcudart.so.12": "never laid",
        include / "kit.h": "12.8, the kit's own",
        include / "cuda/std/barrier": "12.8",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (include / "cuda.h").symlink_to(base / "cuda.h")
    assert program.lay_over(locked, include) == 2
    assert (include / "cuda.h").read_text() == (include / "cuda/std/new.h").read_text() == "12.9"
    assert (base / "cuda.h").read_text() == "12.8", "what a link led to is the base's own"
    assert (include / "kit.h").exists() and (include / "cuda/std/barrier").read_text() == "12.8"
    assert not list((tmp_path / "home").rglob("libcudart*"))
