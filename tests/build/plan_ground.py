"""What the tests of plans share: a base like flagtree's replica, and plans of it with one thing changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from build.inspection import Inspection, Library
from build.matrix.load import load_matrix
from build.matrix.model import Matrix
from build.plan import Cell, TargetPlan, make_plan

MATRIX = load_matrix()
NCCL = "/usr/local/lib/python3.13/dist-packages/nvidia/nccl/lib/libnccl.so.2"
SEEN = Inspection(
    base_id="sha256:" + "a" * 64,
    reference="deepinfer-base:flagtree",
    os="debian 13",
    machine="x86_64",
    python="3.13.5",
    python_tag="cp313",
    ext_suffix=".cpython-313-x86_64-linux-gnu.so",
    executable="/usr/bin/python3",
    site="/usr/local/lib/python3.13/dist-packages",
    torch="2.11.0+cu130",
    torch_git="0123abcd",
    cuda="13.0",
    triton="3.6.0",
    nccl=(Library(NCCL, "libnccl.so.2", "2.28.9"),),
    nccl_loaded=NCCL,
    nccl_version="2.28.9",
    nccl_header="2.28.9",
    gcc="14.2.0",
    glibc="2.41",
    distributions={"nvidia-cuda-runtime": "13.0.96", "nvidia-nccl-cu13": "2.28.9", "numpy": "2.3.0"},
)
SOURCES = {
    **{f"source:{name}": f"sha256:{name}" for name in MATRIX.components},
    **{f"recipe:{name}": f"recipe of {name}" for name in MATRIX.components},
    "builder": "b1",
    "cuda:13.0": "c1",
    "package": "p1",
    "lock:runtime": "r1",
    "lock:toolchain": "t1",
    "assembly": "a1",
}


def plan(
    name: str = "flagtree",
    components: str | None = None,
    *,
    seen: Inspection | None = SEEN,
    matrix: Matrix = MATRIX,
    sources: dict[str, str] = SOURCES,
    cached: Callable[[str], bool] = lambda key: False,
    **options: Any,
) -> TargetPlan:
    """A plan with everything by default as on flagtree's replica."""
    target = matrix.targets[name]
    kind = "host" if target.kind == "host" else "replica"
    return make_plan(
        matrix,
        target,
        components.split() if components is not None else target.components,
        inspection=seen,
        base_kind=options.pop("base_kind", kind),
        sources=sources,
        cached=cached,
        **options,
    )


def cells(made: TargetPlan) -> dict[str, Cell]:
    """The cells by component."""
    return {cell.component.name: cell for cell in made.cells}


def seen(**changes: Any) -> Inspection:
    """The inspection with other facts."""
    return dataclasses.replace(SEEN, **changes)


def changed(component: str, **changes: Any) -> Matrix:
    """The matrix with one component changed."""
    other = dataclasses.replace(MATRIX.components[component], **changes)
    return dataclasses.replace(MATRIX, components={**MATRIX.components, component: other})
