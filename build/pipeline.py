"""One image from base to tag: resolve, inspect, plan, compile, assemble, check, write down, promote."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from build import cache, known
from build.attest.record import record
from build.bases.inspect import check_base, differences, inspect_base
from build.bases.resolve import Base, resolve_base
from build.containers import LABEL, Engine
from build.errors import EnvironmentCannot
from build.gates.run import GateResult, run_gates
from build.gpu.container import container_launch, tritons_for
from build.gpu.stage import StageResult, run_stage, tell
from build.host import target as host
from build.image.assemble import assemble, image_is_current, is_warm, promote
from build.image.names import moving_tag
from build.inspection import Inspection
from build.manifest import write_manifest
from build.matrix.model import Matrix, Target
from build.outcome import BuildOptions, Outcome, Stopwatch, plan_target
from build.plan import BaseKind, TargetPlan, with_warm
from build.wheels.compile import compile_cells


def build_target(matrix: Matrix, target: Target, options: BuildOptions) -> Outcome:
    """Build one target, an image or the host."""
    if target.kind == "host":
        return host.build(matrix, target, options)
    return build_image(Engine.connect(), matrix, target, options)


def build_image(engine: Engine, matrix: Matrix, target: Target, options: BuildOptions) -> Outcome:
    """Build one image and give it its names. Two builds of one image never run at once: the second waits."""
    with cache.locked(f"image-{target.name}", waiting_for=f"build of {target.name}"):
        engine.sweep(f"{target.name}/")
        watch = Stopwatch()
        with watch.step("base", f"{target.name}: base"):
            base = resolve_base(engine, target, options.base)
            inspection = inspect_base(engine, base.reference)
            known.remember(target.name, base.kind, inspection)
            check_base(target, base.kind, inspection, accept=options.accept_base)
        plan = plan_target(matrix, target, options.components, base.kind, inspection)
        if options.warm and inspection.triton is None:
            print(f"note: the base of {target.name} has no Triton: there is nothing to warm", file=sys.stderr)
        elif options.warm:
            plan = with_warm(plan)
        labels = engine.labels(moving_tag(target.name))
        if plan.complete and image_is_current(engine, plan) and is_warm(labels) == plan.warm:
            tag = moving_tag(target.name)
            return Outcome(target.name, "unchanged", tag, times=watch.times, image_id=engine.image_id(tag) or "")
        return _make(engine, matrix, options, base, inspection, plan, watch)


def _make(
    engine: Engine,
    matrix: Matrix,
    options: BuildOptions,
    base: Base,
    inspection: Inspection,
    plan: TargetPlan,
    watch: Stopwatch,
) -> Outcome:
    name = plan.target.name
    with watch.step("compile", f"{name}: components"):
        cells = compile_cells(
            engine, plan, inspection=inspection, base_reference=base.reference, matrix=matrix,
            keep_going=options.keep_going, jobs=options.jobs, wheels_from=options.wheels_from,
        )  # fmt: skip
    if any(cell.status == "failed" for cell in cells):
        return Outcome(name, "component failed", cells=tuple(cells), times=watch.times)
    if not plan.complete:
        return Outcome(name, "components only", str(cache.root() / "wheelhouse"), tuple(cells), times=watch.times)
    with watch.step("assemble", f"{name}: image"):
        built = assemble(engine, plan, base=base, inspection=inspection, results=cells, matrix=matrix)
    held: list[Mapping[str, Any]] = []
    with watch.step("gates", f"{name}: gates"):
        gates = run_gates(engine, built.image_id, plan, inspection, on_inventory=held.append)
    manifest = write_manifest(
        plan, inspection, base=base, built=built, results=cells, gates=gates, times=watch.times,
        attest=(lambda made, folder: record(engine, plan, inspection, held[0], made, folder)) if held else None,
    )  # fmt: skip
    passed = all(gate.ok for gate in gates)
    if passed:
        promote(engine, built)
    return Outcome(
        name, "built" if passed else "gate failed", moving_tag(name) if passed else built.tags[0], tuple(cells),
        tuple(gates), built.sizes, watch.times, manifest, built.image_id,
    )  # fmt: skip


def known_base(target: Target, mode: str) -> tuple[BaseKind, Inspection | None]:
    """What is known of a base without touching Docker: the last inspection of the base that a build would use."""
    if target.kind == "host":
        return "host", host.known_machine()
    kinds: list[BaseKind] = []
    if target.vendor is not None and (mode != "replica" or target.replica is None):
        kinds.append("vendor")
    if target.replica is not None and (mode != "vendor" or target.vendor is None):
        kinds.append("replica")
    for kind in kinds:
        inspection = known.recall(target.name, kind)
        if inspection is not None:
            return kind, inspection
    return kinds[-1] if kinds else "vendor", None


def inspect_target(target: Target, mode: str) -> tuple[BaseKind, Inspection]:
    """Look into the base of an image (made or pulled if it must be), or at this machine."""
    if target.kind == "host":
        return "host", host.inspect_this_machine()
    engine = Engine.connect()
    base = resolve_base(engine, target, mode)
    inspection = inspect_base(engine, base.reference)
    known.remember(target.name, base.kind, inspection)
    return base.kind, inspection


def facts_table(target: Target, kind: BaseKind, inspection: Inspection) -> str:
    """The facts of a base beside what matrix.yaml expects, problems below."""
    wrong = {row.fact: row.expected for row in differences(target, kind, inspection)}
    lines = [f"{target.name}, {kind}: {inspection.reference} ({inspection.os}, {inspection.machine})"]
    for fact, found in inspection.facts().items():
        expected = f"   expected {wrong[fact]}" if fact in wrong else ""
        lines.append(f"  {fact:<18} {found or '-'}{expected}")
    for label, value in (("python at", inspection.executable), ("packages in", inspection.site),
                         ("NCCL loaded", inspection.nccl_loaded), ("CUDA tool kit", inspection.cuda_home),
                         ("nvcc", inspection.nvcc)):  # fmt: skip
        lines.append(f"  {label:<18} {value or '-'}")
    lines += [f"  CUDA runtime       {library.path}" for library in inspection.cudart]
    lines += [f"  problem: {problem}" for problem in inspection.problems]
    return "\n".join(lines)


def check_image(matrix: Matrix, target: Target, *, gpus: int) -> tuple[list[GateResult], list[StageResult]]:
    """The gates on `deepinfer:<image>` as it is here, and with `gpus` > 0 the GPU stage in it.

    Raises EnvironmentCannot when there is no such image, or its base is gone.
    """
    engine = Engine.connect()
    image = engine.image_id(moving_tag(target.name))
    if image is None:
        raise EnvironmentCannot(
            f"there is no image {moving_tag(target.name)} here", next_step=f"./run build --image {target.name}"
        )
    labels = engine.labels(image)
    base = labels.get(f"{LABEL}.base.id", "")  # its name may be another image's by now
    if not base or engine.image_id(base) is None:
        named = labels.get("org.opencontainers.image.base.name", "")
        missing = f"its base {named} is not here any more" if base else "no label of it names its base: it is not ours"
        raise EnvironmentCannot(
            f"{moving_tag(target.name)} cannot be checked: {missing}", next_step=f"./run build --image {target.name}"
        )
    inspection = inspect_base(engine, base)
    kind: BaseKind = "vendor" if labels.get(f"{LABEL}.base") == "vendor" else "replica"
    plan = plan_target(matrix, target, "*", kind, inspection)
    if is_warm(labels):
        plan = with_warm(plan)
    if not image_is_current(engine, plan):
        print(f"note: {moving_tag(target.name)} is not what a build would make now", file=sys.stderr)
    gates = run_gates(engine, image, plan, inspection)
    if gpus == 0:
        return gates, []
    unsupported = {cell.component.name: cell.reason for cell in plan.cells if cell.status == "unsupported"}
    launch, tritons = container_launch(engine, image, inspection, tritons_for(inspection))
    return gates, run_stage(launch, gpus, tritons, unsupported=unsupported, warm=plan.warm, on_row=tell)
