"""Where things of ours lie in a finished image or prefix, and what the gates expect of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from build.inspection import Inspection
from build.plan import Cell, TargetPlan

ROOT = PurePosixPath("/opt/deepinfer")


@dataclass(frozen=True)
class Place:
    """Paths in an image, or of the host's prefix.

    python: the interpreter.  root: the folder of ours.  site: where deep_gemm and deep_ep are (inside `root`).
    engine: folder of the package `deepinfer`.  command: the argument list of `deepinfer`.
    nccl: the library that torch loads, None without.  cache: a folder that any user can write, None on the host.
    document: image.json.
    cuda_homes: where nvcc is looked for, in this order.
    """

    python: str
    root: str
    site: str
    engine: str
    command: tuple[str, ...]
    nccl: str | None = None
    cache: str | None = None
    document: str | None = None
    cuda_homes: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """What a process needs for `import deepinfer`: nothing where the engine lies on the interpreter's own path."""
        return {"PYTHONPATH": self.site} if self.engine.startswith(self.site + "/") else {}

    def roots(self) -> list[str]:
        """Every folder or file of ours."""
        return [self.root, self.engine, *([self.nccl] if self.nccl else [])]

    def folder(self, module: str) -> str:
        """The package folder of one of our modules (`deepinfer._C` lies in deepinfer's)."""
        top = module.split(".")[0]
        return self.engine if top == "deepinfer" else f"{self.site}/{top}"


def image_place(plan: TargetPlan, inspection: Inspection) -> Place:
    """The places of a finished image: fixed by the layout, but for what the base decides."""
    toolchain = plan.target.toolchain
    homes = [toolchain.prefix] if toolchain else []
    if inspection.cuda_home:
        homes.append(inspection.cuda_home)
    return Place(
        python=inspection.executable,
        root=str(ROOT),
        site=str(ROOT / "site"),
        engine=f"{inspection.site}/deepinfer",
        command=("deepinfer",),
        nccl=inspection.nccl_loaded if _overlays(plan) else None,
        cache="/cache",
        document=str(ROOT / "image.json"),
        cuda_homes=tuple(homes),
    )


def modules(plan: TargetPlan) -> tuple[str, ...]:
    """Import names that must work: deepinfer, then every supported component's, in install order."""
    found = [cell.component.module for cell in plan.cells if cell.status != "unsupported" and cell.component.module]
    return ("deepinfer", *found)


def absent(plan: TargetPlan) -> Mapping[str, str]:
    """Import name -> reason, of the components that this target does not support."""
    return {c.component.module: c.reason for c in plan.cells if c.status == "unsupported" and c.component.module}


def replaced(plan: TargetPlan) -> Mapping[str, str]:
    """Distributions that the plan puts in the place of the base's: normalised name -> version.

    None on the host, where the library's file is replaced and the interpreter's packages are left as they are.
    """
    overlays = _overlays(plan) if plan.target.kind == "image" else []
    return {
        cell.component.source.pypi: cell.component.source.version or cell.component.version
        for cell in overlays
        if cell.component.source.pypi
    }


def wants_toolchain(plan: TargetPlan) -> tuple[str, ...]:
    """Components of the plan that compile at run time."""
    return tuple(c.component.name for c in plan.cells if c.component.toolchain and c.status != "unsupported")


def other_cudart(inspection: Inspection) -> str:
    """The soname of a CUDA runtime of another major version than torch's that the base keeps, "" if there is none.

    Triton's download on the FlagTree image: libcudart.so.12 beside CUDA 13.
    """
    if inspection.cuda is None:
        return ""
    own = f"libcudart.so.{inspection.cuda.partition('.')[0]}"
    names = (library.soname for library in inspection.cudart)
    return next((name for name in sorted(names) if name.startswith("libcudart.so.") and name != own), "")


def _overlays(plan: TargetPlan) -> list[Cell]:
    return [cell for cell in plan.cells if cell.component.kind == "overlay" and cell.status != "unsupported"]
