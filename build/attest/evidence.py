"""What is told of an image: its manifest with the files beside it, found by the image's labels or named by the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build import cache
from build.attest.facts import ATTESTATIONS
from build.attest.sbom import files_of, packages_of
from build.containers import LABEL
from build.digests import file_sha256
from build.errors import EnvironmentCannot, GateFailed

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Document:
    """A file beside the manifest: what it should be and what it is.

    recorded, found: its sum; `found` is empty where it is missing.  form: its format, as the manifest says.
    content: None if it is damaged.
    """

    path: Path
    recorded: str
    found: str
    form: str
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
            next_step=f"--registry, if it was pulled from one; or bring {key[:12]}.json and the files beside it from "
            "there, and name them: --manifest FOLDER",
        )
    return read_evidence(path)


def read_evidence(path: Path) -> Evidence:
    """The manifest in a file, and what lies beside it. Raises GateFailed where it is no manifest."""
    try:
        manifest = json.loads(path.read_text())
        problem = shape_problem(manifest)
    except (OSError, ValueError, RecursionError) as damaged:
        problem = str(damaged)
    if problem:
        raise GateFailed(
            f"{path} is no manifest: {problem}",
            cause="it was edited or did not arrive whole",
            next_step="bring it again, or build the image anew",
        )
    told = manifest.get(ATTESTATIONS, {})
    beside = {what: _document(path.parent, told.get(what)) for what in ("sbom", "provenance")}
    return Evidence(path, manifest, _readable(beside["sbom"]), beside["provenance"])


def shape_problem(manifest: Any) -> str:
    """Which part that a check relies on is missing or of another kind; "" if none is."""
    if not isinstance(manifest, dict):
        return "it is no JSON object"
    wanted: dict[str, type] = {
        "image": str, "image_id": str, "image_key": str, "title": str, "created": str, "document_sha256": str,
        "labels": dict, "document": dict, "base": dict, "inspection": dict, "image_inputs": dict, "cells": list,
        "tags": list,
    }  # fmt: skip
    wrong = [name for name, kind in wanted.items() if not isinstance(manifest.get(name), kind)]
    if wrong:
        return f"{wrong[0]} is missing or of another kind"
    if not manifest["tags"] or not all(isinstance(tag, str) for tag in manifest["tags"]):
        return "tags is missing or of another kind"
    for name, value in manifest["labels"].items():
        if not isinstance(value, str):
            return f"labels.{name} is of another kind"
    distributions = manifest["inspection"].get("distributions")
    if not isinstance(distributions, dict) or not isinstance(manifest["base"].get("image_id"), str):
        return "inspection.distributions or base.image_id is missing or of another kind"
    for index, cell in enumerate(manifest["cells"]):
        if not isinstance(cell, dict) or not all(isinstance(cell.get(name), str) for name in ("cell", "key")):
            return f"cells[{index}] is missing or of another kind"
        made = cell.get("artefact")
        if made is not None and not (isinstance(made, dict) and {"name", "sha256", "bytes"} <= made.keys()):
            return f"cells[{cell['cell']}].artefact is of another kind"
    told = manifest.get(ATTESTATIONS, {})
    entries = told.values() if isinstance(told, dict) else [None]
    if not all(isinstance(e, dict) and all(isinstance(e.get(k), str) for k in ("name", "sha256")) for e in entries):
        return f"{ATTESTATIONS} is of another kind"
    return ""


def _readable(sbom: Document | None) -> Document | None:
    """A list of contents as it is; damaged where its parts are not those of one, though it is JSON."""
    if sbom is None or sbom.content is None:
        return sbom
    try:
        names: list[Any] = [*files_of(sbom.content), *packages_of(sbom.content)]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        names = [None]
    return sbom if all(isinstance(name, str) for name in names) else replace(sbom, content=None)


def _document(folder: Path, told: Mapping[str, str] | None) -> Document | None:
    if told is None:
        return None
    path = folder / Path(told["name"]).name
    found, content = "", None
    try:
        found = file_sha256(path)
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        pass  # what is missing or damaged has another sum than the recorded one, which is told
    return Document(
        path, told["sha256"], found, str(told.get("format")), content if isinstance(content, dict) else None
    )
