"""Pushing an image: the immutable tag, its digest read back, what goes with it, then the aliases.

The engine sends layers, all else is written without it. It can be ended at any moment and repeated: a tag appears in a
registry in one moment, when all of its layers are there, and aliases are moved only to a manifest that the registry
itself has given back, with its SBOM and provenance attached.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from docker.errors import APIError

from build import cache
from build.containers import Engine
from build.publish.connection import RegistryCannot
from build.publish.engine_push import push_by_engine
from build.publish.location import IMAGES, Location
from build.publish.manifests import Manifest
from build.publish.read_back import ReadBack, read_back
from build.publish.referrers import attach
from build.publish.registry import Registry
from build.publish.release import Release

ROUNDS = 8
"""How often aliases that two publishers move at once are moved again before this one gives up."""


@dataclass(frozen=True)
class Published:
    """What the registry holds now.

    read_back: what was compared, where that was asked for.
    reference: the immutable name.  digest: what the registry gave back for it.  pushed: False where it was there.
    aliases: what became of each: moved, unchanged, or taken by another publisher that was later.
    documents: by kind (manifest, sbom, provenance, signature): attached to the digest, or there already.
    """

    image: str
    reference: str
    digest: str
    pushed: bool
    aliases: Mapping[str, str]
    seconds: float
    read_back: ReadBack | None = None
    documents: Mapping[str, str] = field(default_factory=dict)


def publish_image(
    engine: Engine, release: Release, where: Location, *, patience: float, whole: bool = False
) -> Published:
    """Push an image under its immutable tag and move its aliases.

    Args:
        patience: seconds without progress after which an attempt has failed.
        whole: fetch every layer again and compare it, before the aliases are moved.

    Raises RegistryCannot (exit 4). Then the aliases name what they named before, or the message says what they name.
    """
    start = time.monotonic()
    registry = Registry.open(where, IMAGES, engine_info=engine.client.info(), patience=patience)
    reference = f"{registry.reference}:{release.tag}"
    lock = hashlib.sha256(reference.encode()).hexdigest()[:16]
    with cache.locked(f"publish-{lock}", waiting_for=f"push of {reference}"):
        there = registry.manifest(release.tag)
        if there is None:
            told = _push(engine, release, registry, patience)
            there = registry.manifest(release.tag)
            if there is None or there.digest != told:
                raise RegistryCannot(
                    f"{reference}: the registry does not give back what was pushed ({told})",
                    cause="somebody else pushed this tag at the same time, or the registry lost it",
                    next_step="run the same command again; no alias was moved",
                )
            pushed = True
        else:
            pushed = False
        check_same(reference, there, release)
        compared = read_back(engine, registry, there, release.image_id) if whole else None
        attached = attach(registry, there, release.documents)
        moved = move_aliases(registry, there, release.aliases)
    seconds = round(time.monotonic() - start, 2)
    return Published(release.image, reference, there.digest, pushed, moved, seconds, compared, attached)


def check_same(reference: str, there: Manifest, release: Release) -> None:
    """Raise RegistryCannot where the immutable tag names another image than this one."""
    if release.image_id not in (there.config, there.digest):
        raise RegistryCannot(
            f"{reference} exists in the registry with another content ({there.config or there.digest})",
            cause="it was published from another build of the same inputs; an immutable tag is never moved",
            next_step=f"use what is there (docker pull {reference}), or publish to another path; no alias was moved",
        )


def move_aliases(registry: Registry, manifest: Manifest, aliases: Sequence[str]) -> dict[str, str]:
    """Make every alias name the manifest; where two do this at once, all end at the same one, the later's.

    Raises RegistryCannot, with what every alias names then. An alias that was moved before the failure is moved back
    if it named something before.
    """
    before = {alias: registry.manifest(alias) for alias in aliases}
    done: dict[str, str] = {}
    try:
        for alias, old in before.items():
            if old is not None and old.digest == manifest.digest:
                done[alias] = "unchanged"
                continue
            registry.put_manifest(alias, manifest)
            done[alias] = "moved"
        return _settle(registry, manifest, done)
    except RegistryCannot as problem:
        moved = [alias for alias, how in done.items() if how == "moved"]
        kept = _move_back(registry, manifest, {alias: before[alias] for alias in moved})
        names = f"; these aliases name the new image already: {', '.join(kept)}" if kept else "; no alias was moved"
        raise RegistryCannot(
            f"{problem.what} (the image itself is there under its immutable tag{names})",
            cause=problem.cause, next_step=problem.next_step,
        ) from None  # fmt: skip


def _settle(registry: Registry, manifest: Manifest, done: Mapping[str, str]) -> dict[str, str]:
    """Read the aliases back until they agree: another publisher may have moved one between our two."""
    for _ in range(ROUNDS):
        seen = {alias: found.digest if (found := registry.manifest(alias)) else "" for alias in done}
        if len(set(seen.values())) == 1:
            ours = manifest.digest in seen.values()
            return dict(done) if ours else dict.fromkeys(done, "taken")
        time.sleep(random.uniform(0.05, 0.5))
        for alias in done:
            registry.put_manifest(alias, manifest)
    raise RegistryCannot(
        f"{registry.reference}: the aliases {', '.join(done)} do not come to rest",
        cause="another publisher moves them at the same time",
        next_step="run the same command again when it has ended",
    )


def _move_back(registry: Registry, manifest: Manifest, before: Mapping[str, Manifest | None]) -> list[str]:
    """Undo moves, as far as the registry lets us; returns the aliases that name the new image still."""
    kept = []
    for alias, old in before.items():
        try:
            now = registry.manifest(alias)
            if now is None or now.digest != manifest.digest:
                continue  # somebody else moved it on
            if old is None:
                kept.append(alias)  # there is no common way to take a tag away
                continue
            registry.put_manifest(alias, old)
        except RegistryCannot:
            kept.append(alias)
    return kept


def _push(engine: Engine, release: Release, registry: Registry, patience: float) -> str:
    """Push through the engine, which has the layers; returns the digest that it tells."""
    reference = f"{registry.reference}:{release.tag}"
    print(f"pushing {reference}", file=sys.stderr, flush=True)
    engine.tag(release.image_id, reference)
    try:
        return push_by_engine(engine, registry, release.tag, patience)
    finally:
        api: Any = engine.client.images
        with contextlib.suppress(APIError, OSError):  # the engine may be gone; `clean` takes the name away then
            api.remove(reference)
