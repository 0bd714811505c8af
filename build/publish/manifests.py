"""Manifests as registries keep them: bytes with a type, named by the hash of the bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    OCI_MANIFEST,
    OCI_INDEX,
)


def sha256(data: bytes) -> str:
    """A content's digest, as registries write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True)
class Manifest:
    """A manifest as the registry has it: its bytes and their type."""

    body: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """`sha256:…` of the bytes."""
        return sha256(self.body)

    @property
    def document(self) -> Mapping[str, Any]:
        """The bytes as JSON; an empty mapping where they are not a JSON object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def config(self) -> str:
        """Digest of the image's configuration, which is the image's id in most engines; empty for an index."""
        config = self.document.get("config")
        return str(config.get("digest", "")) if isinstance(config, dict) else ""
