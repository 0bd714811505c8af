"""Reading a published image back: every byte of every layer, compared with what the engine has.

An engine that has an image pulls nothing of it. So the layers are fetched from the registry itself, unpacked on the
way, and hashed: what has the engine's own hash of a layer has the same files, with the same owners, modes and times.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from build.containers import Engine
from build.publish.connection import Damaged
from build.publish.manifests import Manifest
from build.publish.registry import Registry

GZIP_OR_ZLIB = 47
"""zlib's word for: find out which of the two it is."""


@dataclass(frozen=True)
class ReadBack:
    """What was compared: layers, and their bytes as they lie in the registry."""

    layers: int
    bytes: int


def read_back(engine: Engine, registry: Registry, manifest: Manifest, image_id: str) -> ReadBack:
    """Compare all layers of a manifest in the registry with those of an image in the engine.

    Raises Damaged (exit 4): they differ, or a blob does not have its digest.
    """
    expected: list[str] = engine.image_config(image_id)["RootFS"]["Layers"]
    layers = manifest.document.get("layers")
    described: list[dict[str, Any]] = layers if isinstance(layers, list) else []
    found = [content_of(registry, layer) for layer in described]
    if found != expected:
        pairs = enumerate(zip(found, expected, strict=False))
        differing = ", ".join(str(index) for index, (there, here) in pairs if there != here) or "their number"
        raise Damaged(
            f"{registry.reference}@{manifest.digest} holds other layers than {image_id}",
            cause=f"{len(found)} layers there, {len(expected)} here; different: {differing}",
            next_step="publish to another path, and look at the registry's disk",
        )
    return ReadBack(len(found), sum(int(layer["size"]) for layer in described))


def content_of(registry: Registry, layer: dict[str, Any]) -> str:
    """`sha256:…` of a layer as it is unpacked, which is how an engine names it. Raises Damaged, or RegistryCannot."""
    kept: list[Unpacked] = []

    def begin() -> Callable[[bytes], object]:
        kept[:] = [Unpacked(packed="gzip" in str(layer.get("mediaType")))]
        return kept[0].take

    try:
        registry.read_blob(str(layer["digest"]), size=int(layer["size"]), begin=begin)
        return kept[0].digest()
    except (KeyError, TypeError, ValueError, zlib.error) as problem:
        raise Damaged(
            f"{registry.reference}: a layer cannot be unpacked: {problem}",
            cause="it is damaged, or packed in a way that is not known here", next_step="publish to another path",
        ) from None  # fmt: skip


class Unpacked:
    """The hash of what is in a gzip stream, of one member or several, or of plain bytes."""

    def __init__(self, *, packed: bool) -> None:
        self._hash = hashlib.sha256()
        self._packed = packed
        self._member = zlib.decompressobj(GZIP_OR_ZLIB)
        self._whole = True

    def take(self, data: bytes) -> None:
        """Take the next bytes."""
        if not self._packed:
            self._hash.update(data)
            return
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(GZIP_OR_ZLIB)
            self._hash.update(self._member.decompress(data))
            data = self._member.unused_data
        self._whole = self._member.eof

    def digest(self) -> str:
        """`sha256:…`. Raises ValueError where the last member is cut off."""
        if self._packed and not self._whole:
            raise ValueError("it ends in the middle")
        return f"sha256:{self._hash.hexdigest()}"
