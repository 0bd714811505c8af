"""What the tests of the gates' judges share: a base, a plan, a place, and lines as a gate's programs print them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build.gates.judge.rows import Verdicts
from build.gates.place import Place
from build.gates.result import GateResult
from build.inspection import Inspection
from build.matrix.model import Component, Source, Target
from build.plan import Cell, TargetPlan

PLACE = Place("/usr/bin/python3", "/opt/deepinfer", "/opt/deepinfer/site", "/usr/lib/p/deepinfer", ("deepinfer",))
OURS = "/opt/deepinfer/site"


def one(verdicts: Verdicts, name: str) -> GateResult:
    """The result of one gate."""
    (found,) = [result for result in verdicts.results if result.name == name]
    return found


def base_inspection(**changes: Any) -> Inspection:
    """A base of CUDA 13.0 with torch, NCCL and vLLM."""
    facts: dict[str, Any] = {
        "torch": "2.11.0+cu130", "cuda": "13.0", "triton": "3.6.0", "tokenspeed_triton": "3.8.10.post1",
        "distributions": {"torch": "2.11.0+cu130", "nvidia-nccl-cu13": "2.28.9", "vllm": "0.24.0"},
    }  # fmt: skip
    return Inspection("sha256:1", "base", "os", "x86_64", "3.13", "cp313", ".so", "/p", "/s", **{**facts, **changes})


def image_plan(kind: Any = "image") -> TargetPlan:
    """An image with NCCL and DeepGEMM, on a base that does not support DeepEP."""
    source = Source(pypi="nvidia-nccl-cu13", version="2.32.3")
    nccl = Component("nccl", "NCCL", "overlay", "2.32.3", source, provides="nccl")
    gemm = Component("deep_gemm", "DeepGEMM", "wheel", "2.8.2", Source(path="."), module="deep_gemm", toolchain=True)
    deep_ep = Component("deep_ep", "DeepEP", "wheel", "2.5.0", Source(path="."), module="deep_ep", toolchain=True)
    cells = (
        Cell("x", nccl, "build", key="1" * 64),
        Cell("x", gemm, "cached", key="2" * 64),
        Cell("x", deep_ep, "unsupported", reason="no NCCL"),
    )
    return TargetPlan(Target("x", "x", kind, ("nccl",)), base_inspection(), "replica", cells, "3" * 64)


def import_line(module: str, error: str = "", files: tuple[str, ...] = (), **more: str) -> dict[str, Any]:
    """What a process says of one import: its error, and the files (soname and inode) that are mapped then."""
    mapped = [{"path": path, "soname": Path(path).name, "file": f"0:{number}"} for number, path in enumerate(files)]
    return {"module": module, "error": error, "mapped": mapped, "flaggems": [], "file": "", **more}
