"""What the verbs do, between tasks.py and the parts: select, run, print, and the exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from build import outcome as outcomes_of
from build import pipeline
from build.errors import BuildError, NothingSelected
from build.gates.result import as_text
from build.gpu.stage import as_table as stage_table
from build.host import target as host
from build.matrix.load import load_matrix
from build.matrix.model import Matrix, Target
from build.matrix.select import select
from build.matrix.show import as_json as plans_json
from build.matrix.show import as_table as plans_table
from build.outcome import BuildOptions, Outcome, plan_target

__all__ = ["BASES", "BuildOptions", "build", "check", "inspect", "plan"]

BASES = ("auto", "vendor", "replica")


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


def plan(image: str, component: str, base: str, *, as_json: bool) -> int:
    """Print the plan of the selected targets; touches neither Docker nor a base."""
    matrix = load_matrix()
    plans = []
    for name in select(list(matrix.targets), image, "image"):
        target = matrix.targets[name]
        kind, inspection = pipeline.known_base(target, base)
        plans.append(plan_target(matrix, target, component, kind, inspection))
    if as_json:
        print(json.dumps(plans_json(plans), indent=2))
    else:
        print(plans_table(plans))
    return 0


def build(image: str, options: BuildOptions) -> int:
    """Build the selected targets one after the other; returns the worst exit code."""
    matrix = load_matrix()
    outcomes: list[Outcome] = []
    code = 0
    for target in _selected(matrix, image):
        try:
            outcome = pipeline.build_target(matrix, target, options)
        except BuildError as problem:
            if not options.keep_going:
                raise
            print(problem, file=sys.stderr)
            outcome = Outcome(target.name, "not possible", problem.what, failed_with=problem.exit_code)
        outcomes.append(outcome)
        code = max(code, outcome.exit_code)
        print(outcomes_of.describe(outcome), file=sys.stderr, flush=True)
        if outcome.exit_code and not options.keep_going:
            break
    if len(outcomes) > 1:
        print(outcomes_of.summary(outcomes), file=sys.stderr)
    return code


def inspect(image: str, base: str, *, as_json: bool) -> int:
    """Print what the bases hold beside what is expected."""
    matrix = load_matrix()
    found = [(target, *pipeline.inspect_target(target, base)) for target in _selected(matrix, image)]
    if as_json:
        print(json.dumps({target.name: seen.to_json() for target, _, seen in found}, indent=2, sort_keys=True))
    else:
        for target, kind, seen in found:
            print(pipeline.facts_table(target, kind, seen))
    return 0


def check(image: str, *, gpus: int, offline: Path | None, prefix: Path | None, as_json: bool) -> int:
    """Run the gates, and with `gpus` the GPU stage, on what was built."""
    matrix = load_matrix()
    report = {}
    code = 0
    for target in _selected(matrix, image):
        if target.kind == "host":
            gates, stage = host.check(matrix, target, gpus=gpus, offline=offline, prefix=prefix)
        else:
            gates, stage = pipeline.check_image(matrix, target, gpus=gpus)
        report[target.name] = {
            "gates": [gate.to_json() for gate in gates],
            "gpu": [row.to_json() for row in stage],
        }
        print(as_text(gates), file=sys.stderr)
        if gpus:
            print(stage_table(stage), file=sys.stderr)
        if not (all(gate.ok for gate in gates) and all(row.ok for row in stage)):
            code = 5
    if as_json:
        print(json.dumps(report, indent=2))
    return code
