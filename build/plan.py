"""The plan: a pure function of matrix, inspection and source digests. Every cell is cached, build or unsupported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from build.inspection import Inspection
from build.matrix.constraints import beyond, satisfies, unmet, wanted
from build.matrix.formats import fact_label
from build.matrix.model import Component, Matrix, Target
from build.plan_facts import KnownFacts
from build.plan_keys import FACT_INPUTS, KEY_FORMAT, cell_inputs, digest

CellStatus = Literal["cached", "build", "unsupported"]
BaseKind = Literal["vendor", "replica", "host"]

BY_PATH = "a second file of the same soname does not help: torch loads its own by path"


@dataclass(frozen=True)
class Cell:
    """A component in an image.

    key: 64 hex digits over everything that can change the component's binary; empty when unsupported or expected.
    reason: why it is unsupported, or why an expected cell has no key.
    inputs: what the key hashes, by name, so that two keys can be compared and the manifest can say why it rebuilt.
    expected: the facts come from `expect`, not from an inspection.
    undecided: `expect` leaves a fact out on which it depends, so that it may turn out to be unsupported.
    notes: what a reader of the plan should know: a constraint of upstream's that is gone past, what is replaced.
    """

    image: str
    component: Component
    status: CellStatus
    key: str = ""
    reason: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    expected: bool = False
    notes: tuple[str, ...] = ()
    undecided: bool = False

    @property
    def name(self) -> str:
        """`flagtree/deep_gemm`."""
        return f"{self.image}/{self.component.name}"


@dataclass(frozen=True)
class TargetPlan:
    """The cells of one target, each after those that it needs, and the key of the image that they make.

    facts: the base's, as inspected, else as expected; before any overlay.
    warm: the image carries Triton kernels that were compiled ahead.
    image_key: empty without an inspection.  image_inputs: what it hashes.
    complete: no component of the target was left out by the selection; only then is the image what its name says.
    """

    target: Target
    inspection: Inspection | None
    base_kind: BaseKind
    cells: tuple[Cell, ...]
    image_key: str
    image_inputs: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True
    facts: Mapping[str, str | None] = field(default_factory=dict)
    warm: bool = False

    def to_json(self) -> dict[str, Any]:
        """For `plan --json`: no file paths of this machine, stable order."""
        return {
            "image": self.target.name,
            "kind": self.target.kind,
            "base": self.base_kind,
            "expected": self.inspection is None,
            "complete": self.complete,
            "facts": dict(self.facts),
            "image_key": self.image_key,
            "cells": [
                {
                    "cell": cell.name,
                    "version": cell.component.version,
                    "status": cell.status,
                    "reason": cell.reason,
                    "key": cell.key,
                    "expected": cell.expected,
                    "notes": list(cell.notes),
                    "inputs": dict(sorted({**_unknown_inputs(cell), **cell.inputs}.items())),
                }
                for cell in self.cells
            ],
        }


def make_plan(
    matrix: Matrix,
    target: Target,
    components: Sequence[str],
    *,
    inspection: Inspection | None,
    base_kind: BaseKind,
    sources: Mapping[str, str],
    cached: Callable[[str], bool],
    replace_nccl: bool = True,
) -> TargetPlan:
    """Decide for every selected component of a target whether it is cached, to be built, or unsupported and why.

    Args:
        components: the selected names; what they need of the target's other components comes with them.
        inspection: what the base holds. None: `expect` is used, the cells are marked expected and have no key,
            because the facts that `expect` does not hold (torch's git hash, gcc's patch level, …) are in it.
        sources: digests from `build.sources.collect_sources`.
        cached: whether the wheelhouse has a whole artefact for a key.
        replace_nccl: on the host, whether the file that torch loads may be replaced; in an image it always may.

    A selection changes no key: the facts that overlays provide count whether they are selected or not.
    """
    known = KnownFacts(target, inspection, base_kind, sources, replace_nccl)
    ordered = sorted((matrix.components[name] for name in target.components), key=lambda one: one.provides is None)
    cells = {}
    for component in ordered:
        cell = cells[component.name] = _cell(known.here(component), known, cached)
        if component.provides is not None:
            known.overlaid(component, cell.reason if cell.status == "unsupported" else "")
    wanted_names = _closure(components, ordered)
    chosen = tuple(cells[component.name] for component in ordered if component.name in wanted_names)
    inputs = _image_inputs(known, chosen) if inspection is not None else {}
    return TargetPlan(
        target,
        inspection,
        base_kind,
        chosen,
        image_key=digest(inputs) if inputs else "",
        image_inputs=inputs,
        complete=len(chosen) == len(ordered),
        facts=known.base,
    )


def with_warm(plan: TargetPlan) -> TargetPlan:
    """The same image with warm caches: another key, and every component's as it was."""
    inputs = {**plan.image_inputs, "warm": "yes"} if plan.image_inputs else {}
    return dataclasses.replace(plan, warm=True, image_inputs=inputs, image_key=digest(inputs) if inputs else "")


def without_warm(plan: TargetPlan) -> TargetPlan:
    """The same image without warm caches."""
    inputs = {name: value for name, value in plan.image_inputs.items() if name != "warm"}
    return dataclasses.replace(plan, warm=False, image_inputs=inputs, image_key=digest(inputs) if inputs else "")


def _unknown_inputs(cell: Cell) -> dict[str, None]:
    """Those of a cell's inputs that nobody knows yet: null in JSON, while "none" is a fact."""
    return dict.fromkeys(FACT_INPUTS) if cell.expected and cell.component.kind != "overlay" else {}


def _cell(component: Component, known: KnownFacts, cached: Callable[[str], bool]) -> Cell:
    reason = "" if known.unknown else _unsupported(component, known)
    if reason:
        return Cell(known.target.name, component, "unsupported", reason=reason, expected=known.inspection is None)
    notes = _notes(component, known)
    inputs = cell_inputs(component, known)
    if known.inspection is None:
        held = "no facts yet" if known.unknown else "expected facts only"
        why = f"{held}: the key, and whether it is cached, are known once {known.speaker} was inspected"
        undecided = known.unknown or bool(_undecided(component, known))
        return Cell(
            known.target.name, component, "build", reason=why, inputs=inputs, expected=True, notes=notes,
            undecided=undecided,
        )  # fmt: skip
    key = digest(inputs)
    return Cell(known.target.name, component, "cached" if cached(key) else "build", key, inputs=inputs, notes=notes)


def _unsupported(component: Component, known: KnownFacts) -> str:
    found = unmet(component, known.facts_for(component), known.speaker)
    problems = {fact: text for fact, text in found.items() if fact not in known.unstated}
    for fact in problems:
        if fact in known.missing and known.base.get(fact) is not None:
            problems[fact] += f", and {fact_label(fact)} is not replaced there: {known.missing[fact]}"
    reasons = list(problems.values())
    if component.provides is not None and not reasons:
        reasons += filter(None, [_cannot_replace(component, component.provides, known)])
    return "; ".join(reasons)


def _cannot_replace(component: Component, fact: str, known: KnownFacts) -> str:
    held = known.base.get(fact)
    label = fact_label(fact)
    if held is None:
        return "" if fact in known.unstated else f"{known.speaker} has no {label} to replace"
    if satisfies(held, f">{component.version}"):
        return f"{known.speaker} has {label} {held}: an older one, {component.version}, is never put over it"
    if known.may_replace or held == component.version:
        return ""
    flag = f"--replace-{fact}"
    return f"torch here loads {label} {held}; putting {component.version} in its place needs {flag} ({BY_PATH})"


def _beyond(component: Component, known: KnownFacts) -> tuple[str, ...]:
    stated = {fact: passed for fact, passed in component.beyond.items() if fact not in known.unstated}
    return beyond(dataclasses.replace(component, beyond=stated), known.facts, known.speaker)


def _undecided(component: Component, known: KnownFacts) -> tuple[str, ...]:
    """A line on the constraints about which `expect` says nothing."""
    facts = known.facts_for(component)
    texts = [wanted(f, s) for f, s in component.requires.items() if f in known.unstated and facts.get(f) is None]
    return (f"needs {'; '.join(texts)}: not stated in expect, the inspection decides",) if texts else ()


def _notes(component: Component, known: KnownFacts) -> tuple[str, ...]:
    notes = () if known.unknown else (*_undecided(component, known), *_beyond(component, known))
    if component.kind != "overlay" and component.requires.get("cuda") and known.headers_over is not None:
        text = f"compiled with the headers of CUDA {known.headers_over}, laid over the base's {known.own_headers}"
        notes = (*notes, text)
    notes = (*notes, *(f"compiled with {shim} before every other header" for shim in component.shims))
    held = known.base.get(component.provides) if component.provides is not None else None
    if held is None:
        return notes
    label = fact_label(component.provides or "")
    if held == component.version:
        return (*notes, f"{known.speaker} has {label} {held} already: nothing changes")
    return (*notes, f"replaces {label} {held} in the file that torch loads")


def _image_inputs(known: KnownFacts, cells: Sequence[Cell]) -> dict[str, str]:
    assert known.inspection is not None
    toolchain = known.target.toolchain
    shared = ("package", "lock:runtime", "lock:toolchain", "assembly")
    return {
        "format": KEY_FORMAT,
        "image": known.target.name,
        "base": known.inspection.base_id,
        "base_kind": known.base_kind,
        "toolchain": f"{toolchain.prefix} from nvcc {toolchain.minimum}" if toolchain is not None else "none",
        **{name: known.sources[name] for name in shared if name in known.sources},
        **{f"cell:{cell.component.name}": cell.key or "unsupported" for cell in cells},
    }


def _closure(names: Sequence[str], components: Sequence[Component]) -> set[str]:
    """The names, and the overlays of the target that provide what they require."""
    chosen = {component.name for component in components if component.name in names}
    needed = {fact for component in components if component.name in chosen for fact in component.requires}
    return chosen | {component.name for component in components if component.provides in needed}
