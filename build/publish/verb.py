"""The `publish` verb: to a registry, to an archive, from an archive; images, or the components they are made of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build import known
from build.containers import LABEL, Engine
from build.errors import NothingSelected, UsageError
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
    as_json: bool = False


def run(request: Request) -> int:
    """Do it; prints what was done as it is done, and as JSON in the end, what came before a failure included."""
    where = _destination(request)
    done: list[dict[str, Any]] = []
    try:
        if request.source is not None:
            _tell(done, load_archive(Engine.connect(), request.source, anyway=request.anyway))
            return 0
        matrix, engine = load_matrix(), Engine.connect()
        targets = _targets(engine, matrix, request.image)
        if request.archive is not None and len(targets) != 1:
            names = ", ".join(target.name for target in targets)
            raise UsageError("an archive holds one image", cause=f"selected are {names}", next_step="--image NAME")
        for target in targets:
            if request.wheels and where is not None:
                done.append(_push_components(engine, matrix, target, where))
                continue
            release = find_release(engine, matrix, target, anyway=request.anyway)
            if request.archive is not None:
                _tell(done, write_archive(engine, release, request.archive))
            elif where is not None:
                _tell(done, publish_image(engine, release, where, patience=patience(), whole=request.read_back))
    finally:
        if request.as_json:
            print(json.dumps(done, indent=2, default=str))
    return 0


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
    if request.wheels and not request.registry:
        raise UsageError("--wheels goes to a registry", next_step="./run publish --wheels --registry HOST[:PORT]/PATH")
    if request.read_back and (request.wheels or not request.registry):
        raise UsageError("--read-back is for images that go to a registry", next_step="leave it out")
    return Location.parse(request.registry) if request.registry else None


def _targets(engine: Engine, matrix: Matrix, pattern: str) -> list[Target]:
    """The selected images. What a glob selects and is not here is left out, and said; what is named has to be here."""
    images = [name for name, target in matrix.targets.items() if target.kind == "image"]
    named = {word.strip() for word in pattern.split(",")}
    found = select(images, pattern, "image")
    here = [name for name in found if name in named or engine.image_id(moving_tag(name)) is not None]
    absent = [name for name in found if name not in here]
    if absent:
        print(f"note: not built here, and left out: {', '.join(absent)}", file=sys.stderr, flush=True)
    if not here:
        raise NothingSelected(
            f"--image {pattern!r} selects no image that is here", next_step="./run build --image NAME"
        )
    return [matrix.targets[name] for name in here]


def _push_components(engine: Engine, matrix: Matrix, target: Target, where: Location) -> dict[str, Any]:
    """Push what the wheelhouse has of an image's cells. Overlays stay: every machine fetches them from their index."""
    kind: BaseKind = "replica"
    if engine.labels(moving_tag(target.name)).get(f"{LABEL}.base") == "vendor":
        kind = "vendor"
    plan = plan_target(matrix, target, "*", kind, known.recall(target.name, kind))
    cells = {cell.key: cell.name for cell in plan.cells if cell.key and cell.component.kind != "overlay"}
    states = push_wheels(components_of(where, engine), list(cells))
    for key, state in states.items():
        print(f"{cells[key]} {key[:12]}: {state}", file=sys.stderr, flush=True)
    return {"image": target.name, "components": {cells[key]: [key, state] for key, state in states.items()}}


def _tell(done: list[dict[str, Any]], result: Published | Archived) -> None:
    done.append(asdict(result))
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


def _tell_documents(say: Callable[[str], None], documents: Mapping[str, str]) -> None:
    if documents:
        say("  with it: " + ", ".join(f"{kind} ({state})" for kind, state in documents.items()))
