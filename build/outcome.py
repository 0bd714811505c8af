"""What a build is asked for and how it ended: shared by images and the host."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from build import cache
from build.errors import BuildError, NothingSelected
from build.gates.result import GateResult, as_text
from build.inspection import Inspection
from build.matrix.model import Matrix, Target
from build.matrix.select import select
from build.plan import BaseKind, TargetPlan, make_plan
from build.publish.location import Location
from build.sources import collect_sources
from build.wheels.results import CellResult
from build.wheels.wheelhouse import Wheelhouse

Status = Literal["built", "unchanged", "components only", "component failed", "gate failed", "not possible"]


@dataclass(frozen=True)
class BuildOptions:
    """What the command line of `build` says; see tasks.py for the meaning of each."""

    components: str = "*"
    base: str = "auto"
    accept_base: bool = False
    registry: str = ""
    keep_going: bool = False
    jobs: int | None = None
    offline: Path | None = None
    replace_nccl: bool = False
    prefix: Path | None = None
    wheels_from: Location | None = None
    warm: bool = False


@dataclass(frozen=True)
class Outcome:
    """How the build of one target ended.

    where: the image's name, the prefix, or why it was not possible.  image_id: of the image, where there is one.
    sizes: bytes that the image adds to its base, by part.  times: seconds by step.  error: what ended it before
    anything could be judged.
    """

    target: str
    status: Status
    where: str = ""
    cells: tuple[CellResult, ...] = ()
    gates: tuple[GateResult, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    manifest: Path | None = None
    image_id: str = ""
    error: BuildError | None = None

    @property
    def exit_code(self) -> int:
        """0, or 6 where a component failed, or 5 where a gate did, or the code of the error."""
        if self.error is not None:
            return self.error.exit_code
        return {"component failed": 6, "gate failed": 5}.get(self.status, 0)

    @property
    def seconds(self) -> float:
        """Of all steps together."""
        return round(sum(self.times.values()), 2)

    @property
    def tag(self) -> str:
        """The image's name, "" where none was made."""
        return self.where if self.where.startswith("deepinfer:") else ""

    def to_json(self) -> dict[str, Any]:
        """For `build --json`: what is empty is left out; a failure has the parts of an error."""
        folder = "" if self.tag or self.error is not None else self.where
        found = {
            "tag": self.tag,
            "image_id": self.image_id,
            "folder": folder,
            "cells": [cell.to_json() for cell in self.cells],
            "gates": [gate.to_json() for gate in self.gates],
            "sizes": dict(self.sizes),
            "times": dict(self.times),
            "manifest": str(self.manifest or ""),
        }
        known = {name: value for name, value in found.items() if value}
        return {"image": self.target, "status": self.status, "seconds": self.seconds, **known, **self._failure()}

    def _failure(self) -> dict[str, str | int]:
        if self.error is not None:
            return self.error.to_json()
        if self.status == "component failed":
            failed = [cell for cell in self.cells if cell.status == "failed"]
            told: dict[str, str | int] = {"error": "; ".join(f"{one.cell.name}: {one.reason}" for one in failed)}
            if logs := [str(one.log) for one in failed if one.log is not None]:
                told["log"] = logs[0]
            return {**told, "exit_code": self.exit_code}
        if self.status == "gate failed":
            names = ", ".join(gate.name for gate in self.gates if not gate.ok)
            return {"error": f"gates failed: {names}", "exit_code": self.exit_code}
        return {}


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


def selected_components(matrix: Matrix, target: Target, pattern: str) -> list[str]:
    """The target's components that a pattern names; of the matrix's others in it nothing is said.

    Raises NothingSelected for a name that no component has, or when the target has none of those named.
    """
    named = select(list(matrix.components), pattern, "component")
    chosen = [name for name in target.components if name in named]
    if not chosen:
        raise NothingSelected(
            f"{target.name} has no component {', '.join(named)}", next_step=f"it has: {', '.join(target.components)}"
        )
    return chosen


def plan_target(
    matrix: Matrix,
    target: Target,
    components: str,
    base_kind: BaseKind,
    inspection: Inspection | None,
    *,
    replace_nccl: bool = True,
) -> TargetPlan:
    """The plan of one target from what is known; reads sources and the wheelhouse, changes nothing."""
    house = Wheelhouse(cache.location() / "wheelhouse")
    return make_plan(
        matrix,
        target,
        selected_components(matrix, target, components),
        inspection=inspection,
        base_kind=base_kind,
        sources=collect_sources(matrix, target, cache.REPOSITORY),
        cached=house.holds,
        replace_nccl=replace_nccl,
    )


def describe(outcome: Outcome) -> str:
    """A few lines on how a build ended: gates, sizes, times, and what to type next."""
    lines = [as_text(outcome.gates)] if outcome.gates else []
    if outcome.sizes:
        parts = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in outcome.sizes.items())
        lines.append(f"  added to the base: {parts}")
    if outcome.times:
        lines.append("  " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.times.items()))
    if outcome.manifest is not None:
        lines.append(f"  manifest: {outcome.manifest}")
    lines.append(f"{outcome.target}: {outcome.status}{_empty(outcome)}: {outcome.where}" + _next(outcome))
    return "\n".join(lines)


def _empty(outcome: Outcome) -> str:
    """That nothing of what could be compiled is in it, for that is easily overlooked; the reasons are in the table."""
    if outcome.status != "built" or not outcome.cells or any(cell.status != "unsupported" for cell in outcome.cells):
        return ""
    names = ", ".join(result.cell.component.name for result in outcome.cells)
    return f" without any component ({names}: unsupported, see above)"


def _next(outcome: Outcome) -> str:
    if outcome.status in ("built", "unchanged") and outcome.tag:
        return f"\n  docker run --rm {outcome.tag} env"
    if outcome.status == "built":
        return f"\n  {shlex.quote(f'{outcome.where}/bin/deepinfer')} env"
    if outcome.status == "gate failed":
        return "\n  next step: read what the failed gates say; the image of the last good build keeps its name"
    if outcome.status == "component failed":
        return "see the logs named above; a rerun compiles only what is missing"
    return ""


def summary(outcomes: Sequence[Outcome], *, not_begun: Sequence[str] = ()) -> str:
    """A line a target and failed cell, for the end of a build of several; `not_begun` are those after a failure."""
    rows = []
    for outcome in outcomes:
        rows.append(f"{outcome.target:<12} {outcome.status:<17} {outcome.seconds:7.1f} s  {outcome.where}")
        rows += [
            f"{'':<12}   {result.cell.name}: {result.reason}" + (f" (log: {result.log})" if result.log else "")
            for result in outcome.cells
            if result.status == "failed"
        ]
    rows += [f"{name:<12} not begun (--keep-going goes on after a failure)" for name in not_begun]
    return "\n".join(rows)
