"""What refers to an image in a registry: attached after it, and found again by its digest alone.

A registry of OCI 1.1 keeps the list itself. For the others (Debian's 2.8) it is an index under the tag
`sha256-<digits>`, which whoever attaches something has to keep: the standard's own fallback, as oras and cosign do it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from build.publish.artefacts import EMPTY, Document, Found, descriptor, read_artefact
from build.publish.connection import RegistryCannot
from build.publish.manifests import DIGEST, OCI_INDEX, OCI_MANIFEST, Manifest, sha256
from build.publish.registry import Registry

ROUNDS = 12
"""How often the list is looked at, and written again where another publisher writes it at the same time."""
PAUSE = (0.2, 0.5)
"""Seconds between two looks."""
MOST = 100
"""Referrers of one image that are looked at; whoever may write there can attach any number."""


def attach(registry: Registry, image: Manifest, documents: Sequence[Document]) -> dict[str, str]:
    """Attach files to an image that the registry has; returns by kind: attached, or there.

    It can be ended at any moment and repeated. Raises RegistryCannot.
    """
    subject = {"mediaType": image.media_type, "digest": image.digest, "size": len(image.body)}
    artefacts = {document.kind: document.artefact(subject) for document in documents}
    known = {str(entry.get("digest")) for entry in listed(registry, image.digest)}
    missing = [document for document in documents if artefacts[document.kind].digest not in known]
    by_hand: list[Manifest] = []
    for document in missing:
        artefact = artefacts[document.kind]
        registry.put_blob(EMPTY, sha256(EMPTY))
        registry.put_blob(document.path, artefact.document["layers"][0]["digest"])
        if not registry.put_manifest(artefact.digest, artefact):
            by_hand.append(artefact)
    if by_hand:
        _list(registry, image.digest, by_hand)
    kinds = {document.kind for document in missing}
    return {document.kind: "attached" if document.kind in kinds else "there" for document in documents}


def listed(registry: Registry, digest: str) -> list[Mapping[str, Any]]:
    """Descriptors of what refers to a manifest, as the registry or the fallback's index lists them."""
    entries = registry.referrers(digest)
    if entries is None:
        found = registry.manifest(fallback_tag(digest))
        entries = found.document.get("manifests") if found is not None else []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def find_attached(registry: Registry, digest: str) -> list[Found]:
    """The files of ours that are attached to an image, of every kind and age. Raises RegistryCannot."""
    found = []
    for entry in listed(registry, digest)[:MOST]:
        named = str(entry.get("digest"))
        if entry.get("mediaType") != OCI_MANIFEST or not DIGEST.fullmatch(named):
            continue
        manifest = registry.manifest(named)
        artefact = read_artefact(manifest, digest) if manifest is not None else None
        if artefact is not None:
            found.append(artefact)
    return found


def fallback_tag(digest: str) -> str:
    """The tag of the index: `sha256-<digits>`."""
    return digest.replace(":", "-", 1)


def _list(registry: Registry, digest: str, artefacts: Sequence[Manifest]) -> None:
    """Add artefacts to the index, and see that they stay.

    Another publisher may have read the index before we wrote it, and write it after: his has ours not. Nothing in the
    protocol prevents that, so we look again when he has had the time for it, and so does he.
    """
    settled = False
    for _ in range(ROUNDS):
        entries = list(listed(registry, digest))
        there = {entry.get("digest") for entry in entries}
        missing = [descriptor(artefact) for artefact in artefacts if artefact.digest not in there]
        if missing:
            document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*entries, *missing]}
            body = json.dumps(document, sort_keys=True).encode()
            registry.put_manifest(fallback_tag(digest), Manifest(body, OCI_INDEX))
        elif settled:
            return
        settled = not missing
        time.sleep(random.uniform(*PAUSE))
    raise RegistryCannot(
        f"{registry.reference}:{fallback_tag(digest)}: the list of what belongs to the image does not come to rest",
        cause="another publisher writes it at the same time",
        next_step="run the same command again when it has ended",
    )
