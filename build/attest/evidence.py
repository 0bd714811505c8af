"""What is told of an image: its manifest with the files beside it, found by the image's labels or named by the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import cache
from build.attest.facts import ATTESTATIONS
from build.containers import LABEL
from build.errors import EnvironmentCannot, GateFailed
from build.wheels.wheelhouse import file_sha256

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Document:
    """A file beside the manifest: what it should be (name, sum) and what it is; `content` is None if it is damaged."""

    path: Path
    recorded: str
    found: str
    content: Mapping[str, Any] | None


@dataclass(frozen=True)
class Evidence:
    """A manifest and what it names. sbom, provenance: None where the manifest names none."""

    path: Path
    manifest: Mapping[str, Any]
    sbom: Document | None
    provenance: Document | None


def find_evidence(reference: str, labels: Mapping[str, str], named: Path | None) -> Evidence:
    """The evidence of an image.

    Args:
        labels: the image's.
        named: the manifest, or the folder that holds it; None for the build cache.

    Raises:
        EnvironmentCannot: the image is none of this project's, or there is no manifest of it.
        GateFailed: the manifest is no manifest.
    """
    name, key = labels.get(f"{LABEL}.image", ""), labels.get(f"{LABEL}.key", "")
    if not _NAME.fullmatch(name) or not _KEY.fullmatch(key):
        raise EnvironmentCannot(
            f"{reference} does not say that it is an image of this project: it has no label {LABEL}.key",
            next_step="name an image that `./run build` made, such as deepinfer:flagtree",
        )
    path = named if named is not None else cache.root() / "manifests" / name
    if not path.is_file():
        path = path / f"{key[:12]}.json"
    if not path.is_file():
        raise EnvironmentCannot(
            f"there is no manifest of {reference} here: {path} does not exist",
            cause="the image was built on another machine" if named is None else "",
            next_step=f"bring {key[:12]}.json and the files beside it from there, and name them: --manifest FOLDER",
        )
    return read_evidence(path)


def read_evidence(path: Path) -> Evidence:
    """The manifest in a file, and what lies beside it. Raises GateFailed where it is no manifest."""
    try:
        manifest = json.loads(path.read_text())
        told = manifest.get(ATTESTATIONS, {})
        beside = {what: _document(path.parent, told.get(what)) for what in ("sbom", "provenance")}
        _ = manifest["image_id"], manifest["labels"], manifest["cells"], manifest["inspection"]["distributions"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise GateFailed(
            f"{path} is no manifest: {problem!r}",
            cause="it was edited or did not arrive whole",
            next_step="bring it again, or build the image anew",
        ) from problem
    return Evidence(path, manifest, beside["sbom"], beside["provenance"])


def _document(folder: Path, told: Mapping[str, str] | None) -> Document | None:
    if told is None:
        return None
    path = folder / Path(told["name"]).name
    try:
        return Document(path, told["sha256"], file_sha256(path), dict(json.loads(path.read_text())))
    except FileNotFoundError:
        return Document(path, told["sha256"], "", None)
    except ValueError:
        return Document(path, told["sha256"], file_sha256(path), None)
