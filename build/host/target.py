"""Build and check the target `host`: this machine, without Docker, into a prefix."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from build import cache, known
from build.bases.inspect import inspect_host
from build.call import call
from build.digests import file_sha256
from build.errors import EnvironmentCannot
from build.gates.launcher import local_launcher
from build.gates.place import Place
from build.gates.run import GateResult, run_prefix_gates
from build.gpu.stage import StageResult, run_stage, tell
from build.host.compile import HostShop, compile_on_host
from build.host.nccl import Replacement, replace_nccl
from build.host.offline import OfflineFolder
from build.host.prefix import check_prefix, default_prefix, is_ours, lay_prefix, python_of
from build.inspection import Inspection
from build.matrix.model import Matrix, Target
from build.outcome import BuildOptions, Outcome, Status, Stopwatch, plan_target
from build.plan import TargetPlan
from build.setup.interpreter import host_python, require_torch
from build.triton_versions import triton_dir, versions
from build.wheels.cell import Stop
from build.wheels.fetch import fetch_source
from build.wheels.results import CellResult, results_table

NO_TOOLKIT = "no CUDA tool kit (nvcc and headers) was found on this machine; set CUDA_HOME if there is one"
ELFUTILS = Path("elfutils/libdwfl.h")


def inspect_this_machine() -> Inspection:
    """What the chosen interpreter holds, kept for plans. Raises EnvironmentCannot when it has no torch."""
    python = host_python()
    require_torch(python)
    inspection = inspect_host(python)
    known.remember("host", "host", inspection)
    return inspection


def known_machine() -> Inspection | None:
    """The last inspection of this machine, if it was of the interpreter that a build would take; looks at nothing."""
    inspection = known.recall("host", "host")
    return inspection if inspection is not None and inspection.reference == str(host_python()) else None


def plan_host(matrix: Matrix, target: Target, components: str, inspection: Inspection, *, replace: bool) -> TargetPlan:
    """The plan of the host: what needs a CUDA tool kit is unsupported where there is none."""
    plan = plan_target(matrix, target, components, "host", inspection, replace_nccl=replace)
    if inspection.cuda_home is not None:
        return plan
    cells = [
        dataclasses.replace(cell, status="unsupported", key="", reason=NO_TOOLKIT)
        if cell.component.kind == "wheel" and cell.status != "unsupported"
        else cell
        for cell in plan.cells
    ]
    return dataclasses.replace(plan, cells=tuple(cells))


def build(matrix: Matrix, target: Target, options: BuildOptions) -> Outcome:
    """Compile what is missing, lay the prefix, run the gates that make sense without an image."""
    prefix = options.prefix or default_prefix()
    check_prefix(prefix)
    offline = OfflineFolder(options.offline) if options.offline else None
    with cache.locked("host", waiting_for="build of the host"):
        watch = Stopwatch()
        with watch.step("base", "host: this machine"):
            inspection = inspect_this_machine()
        plan = plan_host(matrix, target, options.components, inspection, replace=options.replace_nccl)
        with watch.step("compile", "host: components"):
            nccl, replaced = _nccl(plan, inspection, offline)
            cells = _compile(plan, inspection, offline, nccl, options)
        if any(cell.status == "failed" for cell in cells):
            return Outcome(target.name, "component failed", cells=tuple(cells), times=watch.times)
        if not plan.complete:
            house = str(cache.root() / "wheelhouse")
            return Outcome(target.name, "components only", house, tuple(cells), times=watch.times)
        with watch.step("assemble", _prefix_line(prefix, inspection.executable)):
            lay_prefix(prefix, plan, inspection, cells, nccl=nccl, replaced=replaced, offline=offline)
        with watch.step("gates", "host: gates"):
            gates = _gates(plan, inspection, prefix)
    status: Status = "built" if all(gate.ok for gate in gates) else "gate failed"
    return Outcome(target.name, status, str(prefix), tuple(cells), tuple(gates), times=watch.times)


def _prefix_line(prefix: Path, python: str) -> str:
    earlier = python_of(prefix)
    text = f"host: prefix {prefix} for {python}"
    return text if earlier in ("", python) else f"{text}, in place of the one for {earlier}"


def check(
    matrix: Matrix, target: Target, *, gpus: int, offline: Path | None, prefix: Path | None
) -> tuple[list[GateResult], list[StageResult]]:
    """The gates on the prefix as it is, and with `gpus` > 0 the GPU stage.

    Raises EnvironmentCannot when nothing was built.
    """
    prefix = prefix or default_prefix()
    if not is_ours(prefix):
        raise EnvironmentCannot(f"there is no prefix at {prefix}", next_step="./run build --image host")
    inspection = inspect_this_machine()
    # What was replaced is known by the file that torch loads now.
    plan = plan_host(matrix, target, "*", inspection, replace=False)
    gates = _gates(plan, inspection, prefix)
    if gpus == 0:
        return gates, []
    # Offline nothing is fetched: a Triton that has not arrived is a row that says so.
    python, tag = inspection.python_version, inspection.python_tag
    if offline is not None:
        found = OfflineFolder(offline).tritons(python)
    else:
        found = {version: triton_dir(version, python_tag=tag) for version in versions(python_tag=tag)}
    unsupported = {cell.component.name: cell.reason for cell in plan.cells if cell.status == "unsupported"}
    tritons = {version: str(folder) for version, folder in found.items()}
    rows = run_stage(_launcher(inspection, prefix), gpus, tritons, unsupported=unsupported, on_row=tell)
    return gates, rows


def _launcher(
    inspection: Inspection, prefix: Path
) -> Callable[[Sequence[str], float], subprocess.CompletedProcess[str]]:
    path = ":".join(filter(None, [str(prefix / "site"), os.environ.get("PYTHONPATH", "")]))

    def launch(argv: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
        return call(
            inspection.executable, *argv[1:], cwd=Path("/"), env={"PYTHONPATH": path}, timeout=limit, quiet=True,
            check=False,
        )  # fmt: skip

    return launch


def _nccl(
    plan: TargetPlan, inspection: Inspection, offline: OfflineFolder | None
) -> tuple[Path | None, Replacement | None]:
    """NCCL's tree, with the file that torch loads replaced by its library where the plan says so."""
    cells = [cell for cell in plan.cells if cell.component.kind == "overlay" and cell.status != "unsupported"]
    if not cells or inspection.nccl_loaded is None:
        return None, None
    (cell,) = cells
    tree = offline.tree("nccl") if offline is not None else None
    if tree is None:
        wheel = fetch_source(cell.component, offline=offline.path if offline else None)
        tree = OfflineFolder(wheel.parent).tree(wheel.name.split("-")[0])
    assert tree is not None
    library = tree / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if not library.is_file():
        raise EnvironmentCannot(
            f"the NCCL pack {tree} holds no nvidia/nccl/lib/libnccl.so.2", next_step="pack it again"
        )
    if inspection.nccl_version == cell.component.version:
        # Whoever put it there: it is what is wanted, though it may be another file of the same version.
        loaded = Path(inspection.nccl_loaded).resolve()
        return tree, Replacement(str(loaded), "", cell.component.version, file_sha256(loaded))
    return tree, replace_nccl(Path(inspection.nccl_loaded), library, cell.component.version)


def _compile(
    plan: TargetPlan, inspection: Inspection, offline: OfflineFolder | None, nccl: Path | None, options: BuildOptions
) -> list[CellResult]:
    shop = HostShop(
        inspection=inspection,
        cuda_home=inspection.cuda_home,
        include=_headers(plan, offline),
        nccl=nccl / "nvidia" / "nccl" if nccl is not None else None,
        stop=Stop(),
    )
    overlays = [cell for cell in plan.cells if cell.component.kind == "overlay"]
    others = [cell for cell in plan.cells if cell.component.kind != "overlay"]
    laid = [
        CellResult(cell, "unsupported" if cell.status == "unsupported" else "built", reason=cell.reason)
        for cell in overlays
    ]
    compiled = compile_on_host(shop, others, keep_going=options.keep_going, jobs=options.jobs, offline=options.offline)
    print(results_table([*laid, *compiled]), file=sys.stderr, flush=True)
    return [*laid, *compiled]


def _headers(plan: TargetPlan, offline: OfflineFolder | None) -> tuple[str, ...]:
    """Folders of the elfutils headers for those that include them: none where the system has them.

    Raises EnvironmentCannot when they are nowhere.
    """
    needed = [c.component.title for c in plan.cells if c.component.kind == "wheel" and c.status == "build"]
    if not needed or (Path("/usr/include") / ELFUTILS).exists():
        return ()
    tree = offline.tree("elfutils") if offline is not None else None
    if tree is not None:
        return (str(tree / "usr" / "include"),)
    raise EnvironmentCannot(
        f"{' and '.join(needed)} need elfutils' headers ({ELFUTILS}), which this machine lacks",
        next_step="apt-get install libdw-dev libelf-dev, or bring elfutils.tar.xz into the folder of packs",
    )


def _gates(plan: TargetPlan, inspection: Inspection, prefix: Path) -> list[GateResult]:
    place = Place(
        python=inspection.executable,
        root=str(prefix),
        site=str(prefix / "site"),
        engine=str(prefix / "site" / "deepinfer"),
        command=(str(prefix / "bin" / "deepinfer"),),
        nccl=inspection.nccl_loaded,
        document=str(prefix / "image.json"),
        cuda_homes=(inspection.cuda_home,) if inspection.cuda_home else (),
    )
    with local_launcher() as launcher:
        return run_prefix_gates(launcher, place, plan, inspection)
