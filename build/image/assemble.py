"""Makes the finished image from a base and what was compiled for it.

It appears under its immutable tag in one moment, when the engine has all of it; `promote` moves `deepinfer:<image>`
after the gates have passed. Killed at any time before, the image of the last build is still there under that name.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.errors import APIError

from build import cache
from build.bases.disk import engine_folder
from build.bases.resolve import Base
from build.call import CallFailed
from build.containers import LABEL, Engine
from build.errors import BuildError, CellFailed, EnvironmentCannot, GateFailed
from build.image.collect import Collected, collect_parts
from build.image.context import context
from build.image.names import image_labels, moving_tag
from build.image.parts import Part
from build.image.warm import no_warm_part, warm_part
from build.inspection import Inspection
from build.matrix.model import Matrix
from build.plan import TargetPlan, with_warm, without_warm
from build.wheels.results import CellResult

OURS_LIMIT = 60_000_000
"""Bytes that an image may grow by beside NCCL, the run-time tool chain, runtime.lock and warm caches."""

REPORTED = {"nccl": "nccl", "toolchain": "toolchain", "runtime": "runtime", "warm": "warm"}
"""Parts whose size is told apart; every other part is `ours`."""


@dataclass(frozen=True)
class Built:
    """A finished image.

    tags: the immutable tag, then the moving one, which exists only after `promote`.
    sizes: bytes of the layers of `nccl`, `toolchain`, `runtime`, `warm` and `ours`, as the engine measures them.
    document: image.json.
    """

    image_id: str
    tags: tuple[str, ...]
    sizes: Mapping[str, int]
    labels: Mapping[str, str]
    document: Mapping[str, Any] = field(default_factory=dict)


def assemble(
    engine: Engine,
    plan: TargetPlan,
    *,
    base: Base,
    inspection: Inspection,
    results: Sequence[CellResult],
    matrix: Matrix,
) -> Built:
    """Lay everything over the base and give the image its immutable tag.

    Raises:
        CellFailed: a component's result is a failure; an image without it would not be what its name says.
        GateFailed: ours adds more than OURS_LIMIT, or a kernel of the warm caches does not compile.
        EnvironmentCannot: no space, the base changed meanwhile, or the engine failed.
    """
    failed = [result.cell.name for result in results if result.status == "failed"]
    if failed:
        raise CellFailed(
            f"{plan.target.name} cannot be assembled without {', '.join(failed)}",
            next_step="see the log of the component, then build again",
        )
    with cache.locked(f"assemble-{plan.target.name}", waiting_for=f"assembly of {plan.target.name}"):
        collect = functools.partial(
            collect_parts, engine, base=base, inspection=inspection, results=results, matrix=matrix
        )

        @contextlib.contextmanager
        def plain() -> Iterator[str]:
            """The image without warm caches; it goes again, unless it is the one of an earlier build."""
            without = without_warm(plan)
            collected = collect(without, warm=no_warm_part(without))
            there = _existing(engine, collected, base)
            image_id = there or _build(engine, without, base, inspection, collected)
            try:
                yield image_id
            finally:
                if there is None:
                    with contextlib.suppress(APIError):
                        engine.client.images.remove(collected.tag)

        warm = warm_part(engine, plan, inspection, plain) if plan.warm else no_warm_part(plan)
        collected = collect(plan, warm=warm)
        for note in collected.warnings:
            print(f"note: {note}", file=sys.stderr, flush=True)
        image_id = _existing(engine, collected, base) or _build(engine, plan, base, inspection, collected)
        sizes = measure_sizes(engine, image_id, base.image_id)
        check_size(plan.target.name, sizes)
        tags = (collected.tag, moving_tag(plan.target.name))
        return Built(image_id, tags, sizes, engine.labels(image_id), json.loads(collected.document))


def promote(engine: Engine, built: Built) -> None:
    """Move `deepinfer:<image>` to a build whose gates have passed."""
    for tag in built.tags[1:]:
        engine.tag(built.image_id, tag)


def is_warm(labels: Mapping[str, str]) -> bool:
    """Whether an image with these labels carries warm caches."""
    return bool(labels.get(f"{LABEL}.warm"))


def image_is_current(engine: Engine, plan: TargetPlan) -> bool:
    """Whether `deepinfer:<image>` is what the plan would make now, with warm caches or without as the image has them.

    It had passed its gates then.
    """
    labels = engine.labels(moving_tag(plan.target.name))
    same = with_warm(plan) if is_warm(labels) else without_warm(plan)
    return bool(same.image_key) and labels.get(f"{LABEL}.key") == same.image_key


def measure_sizes(engine: Engine, image: str, base: str) -> dict[str, int]:
    """Bytes of the layers above the base, by what they hold; a RUN's layer counts to the archive before it."""
    history, below = _history(engine, image), _history(engine, base)
    added = list(reversed(history[: len(history) - len(below)]))
    sizes = dict.fromkeys((*REPORTED.values(), "ours"), 0)
    part = ""
    for layer in added:
        match = re.search(r"ADD (\w+)\.tar /", layer["CreatedBy"])
        part = match[1] if match else part
        sizes[REPORTED.get(part, "ours")] += int(layer["Size"])
    return sizes


def _history(engine: Engine, image: str) -> list[dict[str, Any]]:
    """The layers of an image, newest first."""
    return list(engine.client.images.get(image).history())


def _existing(engine: Engine, collected: Collected, base: Base) -> str | None:
    """The image that has this tag already, if it is the one that would be made: an earlier run stopped after it."""
    labels = engine.labels(collected.tag)
    wanted = {"manifest": f"sha256:{_digest(collected.document)}", "base.id": base.image_id}
    if all(labels.get(f"{LABEL}.{name}") == value for name, value in wanted.items()):
        return engine.image_id(collected.tag)
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _build(engine: Engine, plan: TargetPlan, base: Base, inspection: Inspection, collected: Collected) -> str:
    log = cache.folder("logs") / f"image-{plan.target.name}.log"
    log.unlink(missing_ok=True)
    declared = json.loads(collected.document)["declared"]
    facts = {name: str(change.get("version") or "unknown") for name, change in declared.items()}
    if plan.warm:
        facts["warm"] = str(json.loads(collected.document)["warm"]["kernels"])
    if "nccl" in declared:
        facts["nccl.replaced"] = str(declared["nccl"]["replaced"])
    labels = image_labels(
        plan, base, version=collected.version, document_digest=_digest(collected.document),
        repository=cache.REPOSITORY, facts=facts,
    )  # fmt: skip
    check_space(collected.parts, engine_folder(engine))
    previous = engine.image_id(collected.tag)
    with context(
        plan.target.name, collected.parts, python=inspection.executable, environment=collected.environment,
        prepared=collected.prepared, shell=inspection.shell,
    ) as folder:  # fmt: skip
        try:
            built = engine.build(
                folder, tag=collected.tag, args={"BASE": base.reference, "PYTHON": inspection.executable},
                labels={name: value for name, value in labels.items() if value}, log=log,
            )  # fmt: skip
        except CallFailed as failed:
            raise explain_failure(plan.target.name, failed, log, engine_folder(engine)) from failed
    _check_base(engine, built, base)
    if previous is not None and previous != built:
        _forget(engine, previous)
    return built


def _forget(engine: Engine, image_id: str) -> None:
    """Remove an image that lost its last name to a new one; kept where it has another, or a container uses it."""
    with contextlib.suppress(APIError):  # somebody else may have removed it meanwhile
        if not engine.image_config(image_id)["RepoTags"]:
            engine.client.images.remove(image_id)


def _check_base(engine: Engine, built: str, base: Base) -> None:
    """A tag can be moved while we work: what was built has to stand on the base that was inspected.

    Layers alone do not tell an image that was made from the base from the base itself.
    """
    layers = engine.image_config(built)["RootFS"]["Layers"]
    below = engine.image_config(base.image_id)["RootFS"]["Layers"]
    if layers[: len(below)] != below or engine.image_id(base.reference) != base.image_id:
        engine.client.images.remove(built, force=True)
        raise EnvironmentCannot(
            f"{base.reference} was moved to another image while this one was being made",
            next_step="run the build again",
        )


def check_size(image: str, sizes: Mapping[str, int]) -> None:
    """Raise GateFailed when ours adds more to the base than is allowed."""
    if sizes["ours"] > OURS_LIMIT:
        raise GateFailed(
            f"{image}: ours adds {sizes['ours'] / 1e6:.1f} MB to the base; {OURS_LIMIT / 1e6:.0f} MB are allowed",
            cause="an extension module was not stripped, or a wheel brought files that are not needed",
            next_step="`docker history` shows the layers; DeepGEMM's headers take 27 MB, its extension 2 MB",
        )


def check_space(parts: Sequence[Part], where: Path | None) -> None:
    """Raise EnvironmentCannot when `where` is too full for parts that the engine has not seen.

    They take their size twice there: once as they arrive, once as a layer. An engine elsewhere (None) says by itself
    when its disk is full.
    """
    need = 2 * sum(part.size for part in parts if part.fresh)
    if where is None:
        return
    free = shutil.disk_usage(where).free
    if free < need:
        raise EnvironmentCannot(
            f"the Docker engine has {free / 1e9:.1f} GB free under {where}, and {need / 1e9:.1f} GB are needed",
            next_step="free space: `./run clean` tells what this project holds, `docker system df` what Docker does",
        )


def explain_failure(image: str, failed: CallFailed, log: Path, where: Path | None) -> BuildError:
    """Say what stopped the engine, from the last words of its log."""
    what = f"{image}: the image could not be made"
    if re.search(r"(?i)no space left on device", failed.output):
        free = f" ({where}: {shutil.disk_usage(where).free / 1e6:.0f} MB free)" if where is not None else ""
        return EnvironmentCannot(
            f"{what}: no space is left in the Docker engine{free}",
            next_step="free space: `./run clean` tells what this project holds, `docker system df` what Docker does",
            log=log,
        )
    said = re.findall(r"(?m)^#\d+ [\d.]+ error: (.+)$", failed.output)
    last = (failed.tail.splitlines() or ["the engine said nothing"])[-1]
    return EnvironmentCannot(what, cause=said[-1] if said else last, next_step="read the log", log=log)
