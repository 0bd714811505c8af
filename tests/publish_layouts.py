"""Manifests, documents and archives of an image that has no layers, made without Docker and without skopeo."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from build.attest.evidence import read_evidence
from build.publish.artefacts import Document, documents_of
from build.publish.manifests import OCI_MANIFEST, Manifest, sha256
from tests.publish_stand_ins import evidence_files

KEY = hashlib.sha256(b"an image").hexdigest()
CONFIG = b'{"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}'


def image_manifest(config: bytes = CONFIG) -> Manifest:
    told = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(config), "size": len(config)}
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": told, "layers": []}
    return Manifest(json.dumps(document).encode(), OCI_MANIFEST)


def evidence_in(folder: Path, *, created: str = "2026-11-30T10:00:00Z", image_id: str = sha256(CONFIG)) -> Path:
    return evidence_files(folder, "cpu", key=KEY, image_id=image_id, created=created)


def documents_in(folder: Path, **made: str) -> tuple[Document, ...]:
    return documents_of(read_evidence(evidence_in(folder, **made)))


def archive_of(file: Path, image: Manifest, *, tag: str = "1.0-cpu") -> Path:
    """An OCI archive as skopeo writes it: blobs, then index.json, then oci-layout."""
    name = {"org.opencontainers.image.ref.name": tag}
    entry = {"mediaType": OCI_MANIFEST, "digest": image.digest, "size": len(image.body), "annotations": name}
    members = {f"blobs/{digest.replace(':', '/')}": data for digest, data in
               {image.digest: image.body, sha256(CONFIG): CONFIG}.items()}  # fmt: skip
    members["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    members["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    with tarfile.open(file, "w") as archive:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file
