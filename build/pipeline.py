"""One image from base to tag: resolve, inspect, plan, compile, assemble, check, write down, promote."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from build import cache
from build.bases.inspect import check_base, inspect_base
from build.bases.resolve import Base, resolve_base
from build.containers import Engine
from build.gates.run import GateResult, run_gates
from build.image.assemble import Built, assemble, image_is_current, promote
from build.inspection import Inspection
from build.manifest import write_manifest
from build.matrix.model import Matrix, Target
from build.matrix.select import select
from build.plan import TargetPlan, make_plan
from build.sources import collect_sources
from build.wheels.compile import CellResult, compile_cells
from build.wheels.wheelhouse import Wheelhouse

Status = Literal["built", "unchanged", "components only", "component failed", "gate failed"]


@dataclass(frozen=True)
class BuildOptions:
    """What the command line of `build` says."""

    components: str = "*"
    base: str = "auto"
    accept_base: bool = False
    keep_going: bool = False
    jobs: int | None = None
    offline: Path | None = None
    replace_nccl: bool = False
    prefix: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """How the build of one target ended; `times` holds seconds by step."""

    target: str
    status: Status
    where: str = ""
    cells: tuple[CellResult, ...] = ()
    gates: tuple[GateResult, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    manifest: Path | None = None

    @property
    def exit_code(self) -> int:
        """0, or 6 where a component failed, or 5 where a gate did."""
        return {"component failed": 6, "gate failed": 5}.get(self.status, 0)


class Stopwatch:
    """Seconds by step, and a line on stderr as each step starts."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        """Time a step and say on stderr that it starts."""
        print(f"== {text}", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            yield
        finally:
            self.times[name] = round(time.monotonic() - start, 2)


def plan_target(
    matrix: Matrix, target: Target, components: str, base_kind: Literal["vendor", "replica", "host"],
    inspection: Inspection | None, *, replace_nccl: bool = True,
) -> TargetPlan:
    """The plan of one target from what is known; reads sources and the wheelhouse, changes nothing."""
    sources = collect_sources(matrix, target, cache.REPOSITORY)
    house = Wheelhouse(cache.root() / "wheelhouse")
    return make_plan(
        matrix,
        target,
        select(target.components, components, "component"),
        inspection=inspection,
        base_kind=base_kind,
        sources=sources,
        cached=lambda key: house.find(key) is not None,
        replace_nccl=replace_nccl,
    )


def build_image(engine: Engine, matrix: Matrix, target: Target, options: BuildOptions) -> Outcome:
    """Build one image and give it its names. Two builds of one image never run at once: the second waits."""
    with cache.locked(f"image-{target.name}", waiting_for=f"build of {target.name}"):
        engine.sweep(f"{target.name}/")
        watch = Stopwatch()
        with watch.step("base", f"{target.name}: base"):
            base = resolve_base(engine, target, options.base)
            inspection = inspect_base(engine, base.reference)
            check_base(target, base.kind, inspection, accept=options.accept_base)
        plan = plan_target(matrix, target, options.components, base.kind, inspection)
        if plan.complete and image_is_current(engine, plan):
            return Outcome(target.name, "unchanged", f"deepinfer:{target.name}", times=watch.times)
        return _make(engine, matrix, target, options, base, inspection, plan, watch)


def _make(
    engine: Engine, matrix: Matrix, target: Target, options: BuildOptions, base: Base, inspection: Inspection,
    plan: TargetPlan, watch: Stopwatch,
) -> Outcome:
    with watch.step("compile", f"{target.name}: components"):
        cells = compile_cells(
            engine, plan, inspection=inspection, base_reference=base.reference, matrix=matrix,
            keep_going=options.keep_going, jobs=options.jobs,
        )
    if any(cell.status == "failed" for cell in cells):
        return Outcome(target.name, "component failed", cells=tuple(cells), times=watch.times)
    if not plan.complete:
        return Outcome(target.name, "components only", str(cache.root() / "wheelhouse"), tuple(cells), times=watch.times)
    with watch.step("assemble", f"{target.name}: image"):
        built = assemble(engine, plan, base=base, inspection=inspection, results=cells, matrix=matrix)
    with watch.step("gates", f"{target.name}: gates"):
        gates = run_gates(engine, built.image_id, plan, inspection)
    manifest = write_manifest(plan, inspection, base=base, built=built, cells=cells, gates=gates, times=watch.times)
    return _judged(engine, target, built, cells, gates, watch, manifest)


def _judged(
    engine: Engine, target: Target, built: Built, cells: Sequence[CellResult], gates: Sequence[GateResult],
    watch: Stopwatch, manifest: Path,
) -> Outcome:
    passed = all(gate.ok for gate in gates)
    if passed:
        promote(engine, built)
    return Outcome(
        target.name,
        "built" if passed else "gate failed",
        f"deepinfer:{target.name}" if passed else built.tags[0],
        tuple(cells),
        tuple(gates),
        built.sizes,
        watch.times,
        manifest,
    )
