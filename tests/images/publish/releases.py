"""A tiny image under its names, published and looked for: for tests of publishing."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from pathlib import Path

from build.attest.evidence import read_evidence
from build.containers import LABEL, Engine
from build.publish.artefacts import documents_of
from build.publish.location import IMAGES, Location
from build.publish.push import Published, publish_image
from build.publish.registry import Registry
from build.publish.release import Release, release_of
from tests.publish_stand_ins import evidence_files, tiny_image

NAME = "publish-test"
FILES = {"etc/words": b"a file\n", "opt/deepinfer/image.json": b"{}\n"}
ALIASES = (f"1.2.3-{NAME}-replica", f"{NAME}-replica")


def made(engine: Engine, text: str, *, size: int = 0, base: str = "replica") -> Release:
    """A release of a tiny image whose content and key follow from a word."""
    files = {**FILES, "payload": random.Random(text).randbytes(size), "word": text.encode()}
    image_id = tiny_image(engine, NAME, files, key=hashlib.sha256(text.encode()).hexdigest(), base=base)
    return release_of(NAME, image_id, engine.image_config(image_id))


def publish(engine: Engine, release: Release, host: str, *, patience: float = 30.0) -> Published:
    return publish_image(engine, release, Location.parse(f"{host}/team"), patience=patience)


def digests(host: str, *tags: str) -> list[str | None]:
    """What tags name in the registry."""
    api = Registry.open(Location.parse(f"{host}/team"), IMAGES)
    return [found.digest if (found := api.manifest(tag)) else None for tag in tags]


def documented(engine: Engine, release: Release, folder: Path) -> Release:
    """The release with a manifest, an SBOM and a provenance."""
    key = engine.labels(release.image_id)[f"{LABEL}.key"]
    path = evidence_files(folder, NAME, key=key, image_id=release.image_id)
    return dataclasses.replace(release, documents=documents_of(read_evidence(path)))
