"""Make or find every component of a target: sources checked, the builder made, what is missing compiled and kept.

A rerun does only what is missing: what was finished is found by its key, what a kill left behind is swept.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from build import cache
from build.containers import Engine
from build.inspection import Inspection
from build.matrix.model import Matrix
from build.plan import Cell, TargetPlan
from build.publish.location import Location
from build.publish.wheels import pull_missing
from build.wheels.builder import builder_image
from build.wheels.cell import Stop, Workshop, lock_name, sweep_abandoned
from build.wheels.fetch import fetch_source, told_space
from build.wheels.results import CellResult, results_table
from build.wheels.schedule import Capacity, Schedule, record_of
from build.wheels.wheelhouse import Wheelhouse

__all__ = ["CellResult", "compile_cells", "results_table"]


def compile_cells(
    engine: Engine,
    plan: TargetPlan,
    *,
    inspection: Inspection,
    base_reference: str,
    matrix: Matrix,
    keep_going: bool = False,
    jobs: int | None = None,
    offline: Path | None = None,
    wheels_from: Location | None = None,
) -> list[CellResult]:
    """Make or find the artefact of every cell of the plan; results come in the plan's order.

    Args:
        keep_going: after a failure go on with the others; else what runs is stopped and the rest not begun.
        jobs: compiler processes at once over all cells; the engine's processors by default.
        offline: a folder of sources; then no network is asked for them.
        wheels_from: a registry that is asked for what is not here, before it is compiled.

    A component that does not compile is a result with status "failed", told on stderr with its log and next step.
    Raises MatrixError for a wrong hash, EnvironmentCannot for this machine's troubles; then nothing is half-written.
    """
    house = Wheelhouse(cache.root() / "wheelhouse")
    sweep_abandoned(engine)
    if wheels_from is not None:
        pull_missing(wheels_from, [cell.key for cell in plan.cells if _is_compiled(cell)], house, engine)
    results: dict[str, CellResult] = {}
    for cell in plan.cells:
        settled = _settled(cell, house)
        if settled is not None:
            results[cell.name] = settled
    missing = [cell for cell in plan.cells if cell.name not in results]
    # All sources first: a wrong hash is told before anything is compiled.
    sources = {cell.name: fetch_source(cell.component, offline=offline) for cell in missing}
    for cell in missing:
        if cell.component.kind == "overlay":
            results[cell.name] = _put_overlay(cell, house, sources[cell.name])
    compiles = [cell for cell in missing if _is_compiled(cell)]
    if compiles:
        builder = builder_image(engine, base_reference, inspection, plan.target, matrix, offline=offline)
        shop = Workshop(engine, builder, inspection, Stop())
        schedule = Schedule(shop, house, sources, Capacity.of(engine, len(compiles), jobs), keep_going)
        results |= schedule.run(compiles)
    ordered = [results[cell.name] for cell in plan.cells]
    print(results_table(ordered), file=sys.stderr, flush=True)
    return ordered


def _settled(cell: Cell, house: Wheelhouse) -> CellResult | None:
    """The result of a cell that needs nothing done, else None."""
    if cell.status == "unsupported":
        return CellResult(cell, "unsupported", reason=cell.reason)
    found = house.find(cell.key)
    return None if found is None else CellResult(cell, "cached", artefact=found)


def _is_compiled(cell: Cell) -> bool:
    return cell.status != "unsupported" and cell.component.kind != "overlay"


def _put_overlay(cell: Cell, house: Wheelhouse, wheel: Path) -> CellResult:
    """An overlay's artefact is the published wheel itself."""
    start = time.monotonic()
    with cache.locked(lock_name(cell.key), waiting_for=f"copy of {cell.name}"), told_space(cache.root()):
        kept = house.find(cell.key) or house.put(cell.key, wheel, record_of(cell))
    return CellResult(cell, "built", round(time.monotonic() - start, 1), kept)
