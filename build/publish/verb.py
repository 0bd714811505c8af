"""The `publish` verb: to a registry, to an archive, from an archive; images, or the components they are made of."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from build import known
from build.command import TROUBLE, told_of
from build.containers import LABEL, Engine
from build.errors import UsageError
from build.image.built import built_here
from build.image.names import moving_tag
from build.matrix.load import load_matrix
from build.matrix.model import Matrix, Target
from build.matrix.select import select
from build.outcome import plan_target
from build.plan import BaseKind
from build.publish.archive import Archived, load_archive, write_archive
from build.publish.location import Location
from build.publish.push import Published, publish_image
from build.publish.release import find_release
from build.publish.wheels import components_of, push_wheels

PATIENCE = "DEEPINFER_REGISTRY_TIMEOUT"
_DEFAULT_PATIENCE = 300.0


@dataclass(frozen=True)
class Request:
    """What the command line of `publish` says; see tasks.py for the meaning of each."""

    image: str = "*"
    registry: str = ""
    archive: Path | None = None
    source: Path | None = None
    wheels: bool = False
    anyway: bool = False
    read_back: bool = False


@dataclass(frozen=True)
class Row:
    """How it ended with one image: in a few words, and as for --json what was done, or the error with its exit code."""

    image: str
    told: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For `publish --json`."""
        return {"image": self.image, **self.facts}


def run(request: Request, give: Callable[[Any], None]) -> int:
    """Do it image by image; what is impossible with one is told, and the others are done. Returns the worst exit code.

    Prints what was done as it is done, and a table of all in the end where there are several.

    Args:
        give: takes the rows for --json, those before an interruption too; it is not called where there are none.
    """
    where = _destination(request)
    rows: list[Row] = []
    names: list[str] = []
    try:
        if request.source is not None:
            rows.append(_told(load_archive(Engine.connect(), request.source, anyway=request.anyway)))
            return 0
        matrix, engine, seconds = load_matrix(), Engine.connect(), patience()
        targets = _targets(engine, matrix, request.image)
        selected = [target.name for target in targets]
        if request.archive is not None and len(targets) != 1:
            raise UsageError(
                "an archive holds one image", cause=f"selected are {', '.join(selected)}", next_step="--image NAME"
            )
        names = selected
        for target in targets:
            rows.append(_publish_one(engine, matrix, target, request, where, seconds))
    finally:
        if len(names) > 1:
            print(summary(rows, not_begun=names[len(rows) :]), file=sys.stderr, flush=True)
        if rows:
            give([row.to_json() for row in rows])
    return max(row.exit_code for row in rows)


def _publish_one(
    engine: Engine, matrix: Matrix, target: Target, request: Request, where: Location | None, seconds: float
) -> Row:
    """Publish an image or its components; a failure is told and becomes a row."""
    start = time.monotonic()
    try:
        if request.wheels and where is not None:
            return _push_components(engine, matrix, target, where)
        release = find_release(engine, matrix, target, anyway=request.anyway)
        if request.archive is not None:
            return _told(write_archive(engine, release, request.archive))
        assert where is not None  # _destination saw to it
        return _told(publish_image(engine, release, where, patience=seconds, whole=request.read_back))
    except TROUBLE as problem:
        error = told_of(problem)
        spent = round(time.monotonic() - start, 2)
        told = error.what.partition("\n")[0]
        return Row(target.name, told, error.to_json(), exit_code=error.exit_code, seconds=spent)


def summary(rows: Sequence[Row], *, not_begun: Sequence[str] = ()) -> str:
    """A line an image, for the end of a publication of several; `not_begun` are those after an interruption."""
    width = max(len(name) for name in (*(row.image for row in rows), *not_begun))
    lines = [
        f"{row.image:<{width}}  {f'failed ({row.exit_code})' if row.exit_code else 'done':<10} "
        f"{row.seconds:7.1f} s  {row.told}"
        for row in rows
    ]
    return "\n".join([*lines, *(f"{name:<{width}}  not begun" for name in not_begun)])


def patience() -> float:
    """Seconds without progress after which a registry is too slow. Raises UsageError for what is no such number."""
    text = os.environ.get(PATIENCE, "")
    try:
        seconds = float(text) if text else _DEFAULT_PATIENCE
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise UsageError(f"{PATIENCE}={text!r} is no number of seconds from 1 to 86400", next_step=f"{PATIENCE}=300")
    return seconds


def _destination(request: Request) -> Location | None:
    named = [request.registry, request.archive, request.source]
    if sum(bool(name) for name in named) != 1:
        raise UsageError(
            "publish needs exactly one of --registry, --archive and --from",
            next_step="for example: ./run publish --image flagtree --registry registry.example.org:5000/team",
        )
    if request.source is not None and request.image != "*":
        raise UsageError("--from loads the image that the archive holds", next_step="leave --image out")
    if request.wheels and not request.registry:
        raise UsageError("--wheels goes to a registry", next_step="./run publish --wheels --registry HOST[:PORT]/PATH")
    if request.read_back and (request.wheels or not request.registry):
        raise UsageError("--read-back is for images that go to a registry", next_step="leave it out")
    return Location.parse(request.registry) if request.registry else None


def _targets(engine: Engine, matrix: Matrix, pattern: str) -> list[Target]:
    """The selected images; see `built_here`."""
    images = [name for name, target in matrix.targets.items() if target.kind == "image"]
    return [matrix.targets[name] for name in built_here(engine, select(images, pattern, "image"), pattern)]


def _push_components(engine: Engine, matrix: Matrix, target: Target, where: Location) -> Row:
    """Push what the wheelhouse has of an image's cells. Overlays stay: every machine fetches them from their index."""
    start = time.monotonic()
    kind: BaseKind = "replica"
    if engine.labels(moving_tag(target.name)).get(f"{LABEL}.base") == "vendor":
        kind = "vendor"
    plan = plan_target(matrix, target, "*", kind, known.recall(target.name, kind))
    cells = {cell.key: cell.name for cell in plan.cells if cell.key and cell.component.kind != "overlay"}
    states = push_wheels(components_of(where, engine), list(cells))
    for key, state in states.items():
        print(f"{cells[key]} {key[:12]}: {state}", file=sys.stderr, flush=True)
    components = {cells[key]: [key, state] for key, state in states.items()}
    told = ", ".join(f"{name.partition('/')[2]} {state}" for name, (_, state) in components.items()) or "no components"
    facts = {"image": target.name, "components": components}
    return Row(target.name, told, facts, seconds=round(time.monotonic() - start, 2))


def _told(result: Published | Archived) -> Row:
    """Print what was done with an image, and make a row of it."""
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    if isinstance(result, Published):
        say(f"{result.image}: {'pushed' if result.pushed else 'was there'}: {result.reference}")
        say(f"  {result.digest}, {result.seconds:.1f} s")
        if result.read_back is not None:
            say(f"  read back: {result.read_back.layers} layers, {result.read_back.bytes / 1e6:.0f} MB, identical")
        _tell_documents(say, result.documents)
        for alias, state in result.aliases.items():
            say(f"  {alias}: {state}")
        say(f"  docker pull {result.reference.rpartition(':')[0]}@{result.digest}")
    else:
        say(f"{result.image}: {result.file} ({result.bytes / 1e9:.2f} GB, {result.seconds:.1f} s)")
        say(f"  {result.digest}: {', '.join(result.names)}")
        _tell_documents(say, result.documents)
    where = result.reference if isinstance(result, Published) else str(result.file)
    return Row(result.image, f"{where}, {result.digest}", asdict(result), seconds=result.seconds)


def _tell_documents(say: Callable[[str], None], documents: Mapping[str, str]) -> None:
    if documents:
        say("  with it: " + ", ".join(f"{kind} ({state})" for kind, state in documents.items()))
