"""What goes with an image into a registry or an archive: its manifest, SBOM and provenance, and a signature if any.

Each is an OCI artefact of one layer, the file as it lies in the build cache, whose `subject` is the image's manifest
(OCI 1.1). `oras discover` lists them, `oras pull` writes them under their names, and a layer's digest is the sum that
the manifest names, so that nothing has to be trusted that lies in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from build.attest.evidence import Evidence
from build.attest.signing import bundle_of
from build.errors import GateFailed
from build.publish.manifests import DIGEST, OCI_MANIFEST, Manifest, sha256

EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
CREATED = "org.opencontainers.image.created"
TITLE = "org.opencontainers.image.title"
LIMIT = 256 << 20
"""Bytes of a document; the SBOM of a large image has 3 MB."""
TYPES = {
    "manifest": "application/vnd.deepinfer.image-manifest.v1+json",
    "sbom": "application/vnd.cyclonedx+json",
    "provenance": "application/vnd.in-toto+json",
    "signature": "application/vnd.deepinfer.image-manifest.signature.v1+json",
}
"""By kind, the artefact's type and its layer's. A signature is cosign's over the manifest's file, not over the image;
under cosign's own type, cosign would take it for one of the image."""
ENDINGS = {"manifest": "json", "sbom": "cdx.json", "provenance": "provenance.json", "signature": "sigstore.json"}


@dataclass(frozen=True)
class Document:
    """A file that goes with an image. kind: a key of TYPES.  created: when the manifest was written, or signed."""

    kind: str
    path: Path
    created: str

    def layer(self) -> dict[str, Any]:
        """The descriptor of the file."""
        data = self.path.read_bytes()
        return {
            "mediaType": TYPES[self.kind], "digest": sha256(data), "size": len(data),
            "annotations": {TITLE: self.path.name},
        }  # fmt: skip

    def artefact(self, subject: Mapping[str, Any]) -> Manifest:
        """The artefact's manifest; equal files of equal images have equal ones.

        Args:
            subject: descriptor of the image's manifest.
        """
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": TYPES[self.kind],
            "config": {"mediaType": EMPTY_TYPE, "digest": sha256(EMPTY), "size": len(EMPTY), "data": "e30="},
            "layers": [self.layer()],
            "subject": dict(subject),
            "annotations": {CREATED: self.created},
        }
        return Manifest(json.dumps(document, sort_keys=True).encode(), OCI_MANIFEST)


def documents_of(evidence: Evidence) -> tuple[Document, ...]:
    """The files of an image's evidence. Raises GateFailed where one is not the file that the manifest names."""
    created = str(evidence.manifest["created"])
    found = [Document("manifest", evidence.path, created)]
    for kind, beside in (("sbom", evidence.sbom), ("provenance", evidence.provenance)):
        if beside is None:
            continue
        if beside.found != beside.recorded:
            raise GateFailed(
                f"{beside.path} is not the file that the manifest beside it names",
                cause="it was edited, removed or damaged" if beside.found else "it is missing",
                next_step=f"./run build --image {evidence.manifest['image']} after ./run clean of that image",
            )
        found.append(Document(kind, beside.path, created))
    bundle = bundle_of(evidence.path)
    if bundle.is_file():
        # Signed again, it shall be newer than the one before.
        signed = datetime.fromtimestamp(bundle.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found.append(Document("signature", bundle, signed))
    return tuple(found)


def descriptor(manifest: Manifest) -> dict[str, Any]:
    """A manifest as a list of referrers names it."""
    told: dict[str, Any] = {
        "mediaType": manifest.media_type, "digest": manifest.digest, "size": len(manifest.body),
    }  # fmt: skip
    for name in ("artifactType", "annotations"):
        if manifest.document.get(name):
            told[name] = manifest.document[name]
    return told


@dataclass(frozen=True)
class Found:
    """An artefact that was found: its kind, when its image's manifest was written, and its file's digest and size."""

    kind: str
    created: str
    digest: str
    size: int


def read_artefact(manifest: Manifest, subject: str) -> Found | None:
    """What an artefact of ours is; None for other people's, for another image's, and for what is none.

    Args:
        subject: digest of the image's manifest.
    """
    document = manifest.document
    kinds = {form: kind for kind, form in TYPES.items()}
    try:
        kind = kinds.get(document["artifactType"])
        (layer,) = document["layers"]
        digest, size = layer["digest"], layer["size"]
        if kind is None or document["subject"]["digest"] != subject or not DIGEST.fullmatch(digest):
            return None
        if not isinstance(size, int) or size > LIMIT:
            return None
        return Found(kind, str((document.get("annotations") or {}).get(CREATED, "")), str(digest), size)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def file_name(kind: str, key: str) -> str:
    """What a file is called beside the others of its image.

    Args:
        key: the image's, 64 digits.
    """
    return f"{key[:12]}.{ENDINGS[kind]}"


def newest_first(found: Iterable[Found]) -> Sequence[Found]:
    """By when their image's manifest was written, as RFC 3339 sorts as text."""
    return sorted(found, key=lambda one: (one.created, one.digest), reverse=True)
