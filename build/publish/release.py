"""Which image may be published, and under which names: only one that passed its gates and is what a build makes now."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

from build import known
from build.attest.evidence import find_evidence
from build.containers import LABEL, Engine
from build.errors import BuildError, EnvironmentCannot, GateFailed
from build.image.assemble import image_is_current
from build.image.names import REPOSITORY_NAME, checked_name, moving_tag, tag_part
from build.manifest import find_manifest
from build.matrix.model import Matrix, Target
from build.outcome import plan_target
from build.plan import BaseKind
from build.publish.artefacts import Document, documents_of

ANYWAY = "--anyway publishes it as it is"


@dataclass(frozen=True)
class Release:
    """An image of this machine with the names that it gets elsewhere.

    tag: the immutable one, without the repository.  aliases: the moving ones, the most particular first.
    documents: what goes with it: its manifest, SBOM, provenance and signature.
    """

    image: str
    image_id: str
    tag: str
    aliases: tuple[str, ...]
    documents: tuple[Document, ...] = ()


def find_release(engine: Engine, matrix: Matrix, target: Target, *, anyway: bool = False) -> Release:
    """`deepinfer:<image>` of this machine, if it may be published.

    Args:
        anyway: publish an image without a record of passed gates, or that a build would replace; said on stderr.

    Raises:
        EnvironmentCannot: there is no such image, it bears no immutable name, or it is not current.
        GateFailed: its gates did not pass, or a file beside its manifest is not the one that the manifest names.
    """
    image_id = engine.image_id(moving_tag(target.name))
    if image_id is None:
        raise EnvironmentCannot(
            f"there is no image {moving_tag(target.name)} here", next_step=f"./run build --image {target.name}"
        )
    release = release_of(target.name, image_id, engine.image_config(image_id))
    for problem in (_gates(engine, target, image_id), _currency(engine, matrix, target)):
        if problem is not None and not anyway:
            raise problem
        if problem is not None:
            _note(problem)
    try:
        documents = documents_of(find_evidence(moving_tag(target.name), engine.labels(image_id), None))
    except (EnvironmentCannot, GateFailed) as problem:
        if not anyway:
            raise
        _note(problem)
        return release
    return dataclasses.replace(release, documents=documents)


def _note(problem: BuildError) -> None:
    print(f"note: published as it is, as asked: {problem.what}", file=sys.stderr, flush=True)


def release_of(image: str, image_id: str, attributes: dict[str, Any]) -> Release:
    """The names of an image, from its labels and the immutable tag that it bears.

    Args:
        attributes: as the engine tells them.

    Raises EnvironmentCannot for an image that is not the project's, or bears no immutable tag.
    """
    labels: dict[str, str] = attributes["Config"].get("Labels") or {}
    key = labels.get(f"{LABEL}.key", "")
    own = [name.removeprefix(f"{REPOSITORY_NAME}:") for name in attributes.get("RepoTags") or ()
           if name.startswith(f"{REPOSITORY_NAME}:") and key and name.endswith(f"-{key[:12]}")]  # fmt: skip
    if labels.get(f"{LABEL}.image") != image or not own:
        raise EnvironmentCannot(
            f"{moving_tag(image)} does not bear the immutable tag and the labels of a build",
            cause="it was tagged by hand",
            next_step=f"./run build --image {image}",
        )
    replica = labels.get(f"{LABEL}.base") != "vendor"
    return Release(image, image_id, own[0], aliases(image, labels["org.opencontainers.image.version"], replica=replica))


def aliases(image: str, version: str, *, replica: bool) -> tuple[str, str]:
    """`<version>-<image>` and `<image>`, both with `-replica` where the base is not the vendor's own."""
    suffix = "-replica" if replica else ""
    return f"{tag_part(version)}-{checked_name(image)}{suffix}", f"{checked_name(image)}{suffix}"


def _gates(engine: Engine, target: Target, image_id: str) -> GateFailed | None:
    """What stands against the image on account of its gates."""
    manifest = find_manifest(target.name, engine.labels(image_id))
    again = f"./run build --image {target.name}; {ANYWAY}"
    if manifest is None or manifest.get("image_id") != image_id:
        return GateFailed(
            f"no record here says that the gates of {moving_tag(target.name)} passed",
            cause="it was built with another cache, or loaded from a file", next_step=again,
        )  # fmt: skip
    if manifest.get("passed") is not True:
        failed = [gate["name"] for gate in manifest.get("gates", ()) if not gate.get("ok")]
        return GateFailed(f"{moving_tag(target.name)} did not pass its gates: {', '.join(failed)}", next_step=again)
    return None


def _currency(engine: Engine, matrix: Matrix, target: Target) -> EnvironmentCannot | None:
    """What stands against the image because a build would make another one now."""
    kind: BaseKind = "vendor" if engine.labels(moving_tag(target.name)).get(f"{LABEL}.base") == "vendor" else "replica"
    inspection = known.recall(target.name, kind)
    if inspection is not None and image_is_current(engine, plan_target(matrix, target, "*", kind, inspection)):
        return None
    return EnvironmentCannot(
        f"{moving_tag(target.name)} is not what a build would make now",
        cause="sources, matrix.yaml or the base changed since it was built",
        next_step=f"./run build --image {target.name}; {ANYWAY}",
    )
