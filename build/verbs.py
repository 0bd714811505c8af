"""What the verbs do, between tasks.py and the parts: select, run, print, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from build import outcome as outcomes_of
from build import pipeline
from build.bases.mirror import with_registry
from build.bases.resolve import MODES as BASES
from build.command import TROUBLE, told_of
from build.containers import Engine
from build.errors import NothingSelected, UsageError
from build.gates.result import as_text
from build.gpu.stage import as_table as stage_table
from build.host import target as host
from build.image.built import built_here
from build.matrix.load import load_matrix
from build.matrix.model import Matrix, Target
from build.matrix.select import select
from build.matrix.show import as_json as plans_json
from build.matrix.show import as_table as plans_table
from build.outcome import BuildOptions, Outcome, plan_target, selected_components

__all__ = ["BASES", "BuildOptions", "build", "check", "inspect", "plan"]


def _selected(matrix: Matrix, pattern: str) -> list[Target]:
    """The targets of a pattern. A glob means images: the host is this machine, and is taken only when it is named."""
    named = {word.strip() for word in pattern.split(",")}
    found = [matrix.targets[name] for name in select(list(matrix.targets), pattern, "image")]
    chosen = [target for target in found if target.kind == "image" or target.name in named]
    if not chosen:
        raise NothingSelected(
            f"--image {pattern!r} matches only the host, which a glob does not select", next_step="--image host"
        )
    return chosen


def _with_components(matrix: Matrix, targets: Sequence[Target], pattern: str) -> list[Target]:
    """The targets that have one of the components; the others are named on stderr.

    Raises NothingSelected when none has, or a name is no component's.
    """
    having: list[Target] = []
    lacking: list[NothingSelected] = []
    for target in targets:
        try:
            selected_components(matrix, target, pattern)
            having.append(target)
        except NothingSelected as problem:
            lacking.append(problem)
    if not having:
        raise lacking[0]
    for absence in lacking:
        print(f"note: {absence.what}; left out", file=sys.stderr)
    return having


def plan(image: str, component: str, base: str, *, as_json: bool) -> int:
    """Print the plan of the selected targets; touches neither Docker nor a base."""
    matrix = load_matrix()
    plans = []
    named = [matrix.targets[name] for name in select(list(matrix.targets), image, "image")]
    for target in _with_components(matrix, named, component):
        kind, inspection = pipeline.known_base(target, base)
        if target.kind == "host" and inspection is not None:
            plans.append(host.plan_host(matrix, target, component, inspection, replace=False))
        else:
            plans.append(plan_target(matrix, target, component, kind, inspection))
    if as_json:
        print(json.dumps(plans_json(plans), indent=2))
    else:
        print(plans_table(plans))
    return 0


def build(image: str, options: BuildOptions, give: Callable[[Any], None] = lambda _: None) -> int:
    """Build the selected targets one after the other; returns the worst exit code.

    Args:
        give: takes a row for each target for --json, after an interruption too; the rows of those that were not
            reached, or not finished, have the status "not done".
    """
    matrix = with_registry(load_matrix(), options.registry)
    targets = _with_components(matrix, _selected(matrix, image), options.components)
    _check_options(targets, options)
    outcomes: list[Outcome] = []
    rest = [target.name for target in targets]
    try:
        for target in targets:
            outcome = _build_one(matrix, target, options)
            outcomes.append(outcome)
            rest.remove(target.name)
            if outcome.status != "not possible":  # that was told, and ends with its next step
                print(outcomes_of.describe(outcome), file=sys.stderr, flush=True)
            if outcome.exit_code and not options.keep_going:
                break
        if len(targets) > 1:
            print(outcomes_of.summary(outcomes, not_begun=rest), file=sys.stderr)
    finally:
        if outcomes:
            done = [outcome.to_json() for outcome in outcomes]
            give([*done, *({"image": name, "status": "not done"} for name in rest)])
    return max(outcome.exit_code for outcome in outcomes)


def _check_options(targets: Sequence[Target], options: BuildOptions) -> None:
    """Raise UsageError for an option that none of the targets has, and which would be passed over in silence."""
    kinds = {target.kind for target in targets}
    if options.warm and "host" in kinds:
        raise UsageError(
            "--warm is for images: this machine's cache fills by itself, and stays",
            next_step="`deepinfer warm` of the prefix compiles the kernels ahead",
        )
    if options.wheels_from is not None and "image" not in kinds:
        raise UsageError(
            "--wheels-from is for images: the host compiles its components itself", next_step="leave it out"
        )
    _for_the_host("prefix", options.prefix is not None, kinds)
    _for_the_host("replace-nccl", options.replace_nccl, kinds)


def _for_the_host(flag: str, given: bool, kinds: Collection[str]) -> None:
    if given and "host" not in kinds:
        raise UsageError(f"--{flag} is for the host, which is not selected", next_step="--image host, or leave it out")


def _build_one(matrix: Matrix, target: Target, options: BuildOptions) -> Outcome:
    """Build a target; what is impossible is told and becomes an outcome, so that the table has a row for it."""
    try:
        return pipeline.build_target(matrix, target, options)
    except TROUBLE as problem:
        told = told_of(problem)
        return Outcome(target.name, "not possible", told.what.partition("\n")[0], error=told)


def inspect(image: str, base: str, *, registry: str = "", as_json: bool) -> int:
    """Print what the bases hold beside what is expected; returns the worst exit code. registry: see `with_registry`.

    A base that cannot be looked into is told, and the others are shown.
    """
    targets = _selected(with_registry(load_matrix(), registry), image)
    if any(target.kind == "image" for target in targets):
        Engine.connect()  # one that does not answer is told once, and not for each image
    report: dict[str, Any] = {}
    codes = [0]
    for target in targets:
        try:
            kind, seen = pipeline.inspect_target(target, base)
        except TROUBLE as problem:
            told = told_of(problem)
            report[target.name] = told.to_json()
            codes.append(told.exit_code)
            continue
        report[target.name] = seen.to_json()
        if not as_json:
            print(pipeline.facts_table(target, kind, seen), flush=True)
    if as_json:
        print(json.dumps(report, indent=2, sort_keys=True))
    return max(codes)


def check(image: str, *, gpus: int, offline: Path | None, prefix: Path | None, as_json: bool) -> int:
    """Run the gates, and with `gpus` the GPU stage, on what was built; returns the worst exit code.

    What a glob selects and was not built here is left out, and said. A target that cannot be checked is told, and the
    others are checked.
    """
    matrix = load_matrix()
    targets = _selected(matrix, image)
    _for_the_host("prefix", prefix is not None, {target.kind for target in targets})
    report: dict[str, Any] = {}
    codes = [0]
    for target in _built(targets, image):
        try:
            if target.kind == "host":
                gates, stage = host.check(matrix, target, gpus=gpus, offline=offline, prefix=prefix)
            else:
                gates, stage = pipeline.check_image(matrix, target, gpus=gpus)
        except TROUBLE as problem:
            told = told_of(problem)
            report[target.name] = told.to_json()
            codes.append(told.exit_code)
            continue
        report[target.name] = {
            "gates": [gate.to_json() for gate in gates],
            "gpu": [row.to_json() for row in stage],
        }
        print(as_text(gates), file=sys.stderr)
        if gpus:
            print(stage_table(stage), file=sys.stderr)
        if not (all(gate.ok for gate in gates) and all(row.ok for row in stage)):
            codes.append(5)
    if as_json:
        print(json.dumps(report, indent=2))
    return max(codes)


def _built(targets: Sequence[Target], pattern: str) -> list[Target]:
    """Those that are here, the host and what is named in any case."""
    images = [target.name for target in targets if target.kind == "image"]
    here = built_here(Engine.connect(), images, pattern) if images else []
    return [target for target in targets if target.kind == "host" or target.name in here]
