"""How an image came to be: an in-toto statement with SLSA's provenance predicate, version 1.

The subject is the image; what went in stands under resolvedDependencies, each with its digest; the sum of every fact
of the manifest stands under byproducts, so that a manifest that somebody edits no longer fits. What the statement says
is as good as whoever signs it: see build/attest/signing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from build.attest.facts import fact_sums
from build.cache import REPOSITORY
from build.digests import file_sha256
from build.inspection import Inspection
from build.locks import read_lock
from build.matrix.model import Target

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:deepinfer-hopper:image:v1"
BUILDER = "urn:deepinfer-hopper:build"
BUILDER_FOLDER = "images/builder"
_LABEL = "org.opencontainers.image"


@dataclass(frozen=True)
class Layers:
    """The layers of an image from below (`sha256:…` of their contents), and how many of them are its base's.

    settings: what the image is set to run, by Docker's names (User, Entrypoint …), as far as every format keeps it.
    """

    digests: tuple[str, ...]
    base: int
    settings: Mapping[str, Any] = field(default_factory=dict)


def make_provenance(
    manifest: Mapping[str, Any],
    *,
    target: Target,
    inspection: Inspection,
    layers: Layers,
    sbom: Mapping[str, str],
    engine: str,
    repository: Path = REPOSITORY,
) -> dict[str, Any]:
    """The statement as a JSON object; the same for the same arguments and files of the repository.

    Args:
        manifest: without its attestations.
        sbom: `name` and `sha256` of the file with the image's contents.
        engine: version of the Docker engine.

    Raises MatrixError when a lock cannot be read.
    """
    return {
        "_type": STATEMENT,
        "subject": [{"name": manifest["tags"][0], "digest": _digest(manifest["image_id"])}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "image": manifest["image"],
                    "base": manifest["base"]["kind"],
                    "components": [cell["cell"] for cell in manifest["cells"]],
                },
                "internalParameters": {
                    "image_key": manifest["image_key"],
                    "image_inputs": manifest["image_inputs"],
                    "cells": {
                        cell["cell"]: {"key": cell["key"], "inputs": cell["inputs"]} for cell in manifest["cells"]
                    },
                    "layers": {"digests": list(layers.digests), "base": layers.base},
                    "settings": dict(layers.settings),
                },
                "resolvedDependencies": list(_dependencies(manifest, target, inspection, repository)),
            },
            "runDetails": {
                "builder": {
                    "id": BUILDER,
                    "version": {"deepinfer-hopper": manifest["labels"].get(f"{_LABEL}.version", ""), "docker": engine},
                },
                "metadata": {"finishedOn": manifest["created"]},
                "byproducts": [
                    {"name": sbom["name"], "digest": {"sha256": sbom["sha256"]}},
                    {"name": "manifest", "annotations": {"facts": fact_sums(manifest)}},
                ],
            },
        },
    }  # fmt: skip


def recorded_facts(statement: Mapping[str, Any]) -> dict[str, str]:
    """The sums of the manifest's facts that a statement holds. Raises KeyError or TypeError where it is damaged."""
    for product in statement["predicate"]["runDetails"]["byproducts"]:
        if product["name"] == "manifest":
            return dict(product["annotations"]["facts"])
    raise KeyError("byproducts: manifest")


def recorded_layers(statement: Mapping[str, Any]) -> Layers:
    """The layers that a statement holds. Raises KeyError or TypeError where it is damaged."""
    told = statement["predicate"]["buildDefinition"]["internalParameters"]
    return Layers(tuple(told["layers"]["digests"]), int(told["layers"]["base"]), dict(told["settings"]))


def _dependencies(
    manifest: Mapping[str, Any], target: Target, inspection: Inspection, repository: Path
) -> Iterator[dict[str, Any]]:
    base = manifest["base"]
    yield {
        "name": "base", "uri": f"docker://{base['reference']}", "digest": _digest(base["digest"] or base["image_id"]),
        "annotations": {"image_id": base["image_id"], "kind": base["kind"]},
    }  # fmt: skip
    yield _repository(manifest["labels"])
    compiled = [cell for cell in manifest["cells"] if cell["status"] != "unsupported"]
    for cell in compiled:
        yield _source(cell)
    for file in _files(target, inspection, base["kind"], repository):
        yield {"name": str(file.relative_to(repository)), "digest": {"sha256": file_sha256(file)}}
    for lock in _builder_locks(inspection, repository):
        for pin in read_lock(lock).pins:
            yield {
                "name": f"builder: {pin.name}", "uri": f"pkg:pypi/{pin.name}@{pin.version}",
                # One sum for every kind of wheel that the lock allows; a digest of one name can hold only one.
                **({"digest": {"sha256": pin.hashes[0]}} if len(pin.hashes) == 1
                   else {"annotations": {"sha256": sorted(pin.hashes)}}),
            }  # fmt: skip


def _repository(labels: Mapping[str, str]) -> dict[str, Any]:
    commit, _, modified = labels.get(f"{_LABEL}.revision", "unknown").partition("-")
    told: dict[str, Any] = {"name": "repository", "uri": labels.get(f"{_LABEL}.source", "")}
    if commit != "unknown":
        told["digest"] = {"gitCommit": commit}
    return told | {"annotations": {"modified": bool(modified)}}


def _source(cell: Mapping[str, Any]) -> dict[str, Any]:
    source, name = cell["source"], f"source of {cell['cell']}"
    if "pypi" in source:
        uri = f"pkg:pypi/{canonicalize_name(source['pypi'])}@{source['version']}"
        return {"name": name, "uri": uri, "digest": {"sha256": source["sha256"]}}
    if "git" in source:
        return {"name": name, "uri": f"git+{source['git']}", "digest": {"gitCommit": source["commit"]}}
    # A sum of ours over names and contents of the files that can change the binary (build/sources.py); in-toto has no
    # kind of digest for it.
    return {"name": name, "uri": f"file:{source['path']}", "annotations": {"files": cell["inputs"].get("source", "")}}


def _files(target: Target, inspection: Inspection, kind: str, repository: Path) -> Sequence[Path]:
    """The recipes and locks that images are made by."""
    named = [
        "matrix.yaml",
        "images/Dockerfile",
        f"{BUILDER_FOLDER}/Dockerfile",
        target.runtime_lock,
        target.toolchain.lock if target.toolchain is not None else None,
        target.replica.lock if target.replica is not None and kind == "replica" else None,
    ]
    found = [repository / name for name in named if name is not None]
    return [*found, *_builder_locks(inspection, repository)]


def _builder_locks(inspection: Inspection, repository: Path) -> Sequence[Path]:
    folder = repository / BUILDER_FOLDER
    cuda = folder / f"cuda-{inspection.cuda}.lock"
    return [folder / "packages.lock", *([cuda] if inspection.cuda and cuda.is_file() else [])]


def _digest(told: str) -> dict[str, str]:
    """`sha256:…` as in-toto writes it; empty where a base has none."""
    kind, _, value = told.partition(":")
    return {kind: value} if value else {}
