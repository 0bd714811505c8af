"""A manifest with all that goes with it, its image a few facts: for tests of what `verify` finds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build.attest.artefacts import artefact_rows
from build.attest.evidence import Evidence, read_evidence
from build.attest.provenance import PREDICATE, Layers, make_provenance
from build.attest.record import subject_of
from build.attest.rows import Row
from build.attest.sbom import make_sbom
from build.attest.verify import content_rows, image_rows, manifest_rows
from build.containers import LABEL
from build.manifest import document_sha256
from build.matrix.load import load_matrix
from tests.image_stand_ins import base_facts, make_wheel

IMAGE = "sha256:" + "b" * 64
BASE = "sha256:" + "a" * 64
GEMM, HELD = "cells[flagtree/deep_gemm]", "inspection.distributions"
Edit = Callable[[dict[str, Any]], object]


def digest(inputs: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclasses.dataclass
class Ground:
    """A manifest with its files in a folder, the cache that made it, and what its image holds."""

    folder: Path
    cache: Path
    held: dict[str, Any]
    labels: dict[str, str]

    @property
    def path(self) -> Path:
        return self.folder / "manifest.json"

    def evidence(self) -> Evidence:
        return read_evidence(self.path)

    def edit(self, change: Edit) -> Evidence:
        made = json.loads(self.path.read_text())
        change(made)
        self.path.write_text(json.dumps(made))
        return self.evidence()


def make_ground(tmp_path: Path) -> Ground:
    """Make them: the cache in `tmp_path / "cache"`, the manifest in `tmp_path / "manifests"`."""
    inputs, gemm = {"base": BASE}, {"torch": "2.11.0+cu130"}
    key = digest(gemm)
    wheel = make_wheel(
        tmp_path / "cache" / "wheelhouse" / key, "deep_gemm", "2.8.2", {"deep_gemm/__init__.py": b"x = 1\n"}
    )
    document = {"schema": 1, "components": {"deep_gemm": {"key": key}}}
    text = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
    labels = {
        f"{LABEL}.image": "flagtree", f"{LABEL}.key": digest(inputs), f"{LABEL}.manifest": document_sha256(document),
        "org.opencontainers.image.created": "2026-11-30T08:39:02Z",
    }  # fmt: skip
    held = {
        "files": {
            "/opt/deepinfer/image.json": {"sha256": sha256(text), "bytes": len(text), "mode": "0644"},
            "/opt/deepinfer/site/deep_gemm/__init__.py": {"sha256": sha256(b"x = 1\n"), "bytes": 6, "mode": "0644"},
            "/opt/deepinfer/site/other/__init__.py": {"sha256": "7" * 64, "bytes": 6, "mode": "0644"},
        },
        "distributions": [{"name": "torch", "version": "2.11.0", "folder": "/x", "expression": "", "licence": ""}],
        "debian": [{"package": "libc6", "version": "2.41", "architecture": "amd64", "source": ""}],
        "system": {"ID": "debian", "VERSION_ID": "13"},
    }
    manifest = {
        "schema": 1, "image": "flagtree", "title": "FlagTree", "created": "2026-11-30T08:39:19Z", "image_id": IMAGE,
        "image_key": digest(inputs), "image_inputs": inputs, "tags": ["deepinfer:x", "deepinfer:flagtree"],
        "labels": labels, "document": document, "document_sha256": document_sha256(document),
        "base": {"kind": "replica", "reference": "here:x", "image_id": BASE, "digest": BASE},
        "inspection": base_facts().to_json(), "passed": True, "times": {"compile": 1.5},
        "cells": [{
            "cell": "flagtree/deep_gemm", "status": "built", "key": key, "inputs": gemm,
            "source": {"pypi": "deepinfer-gemm", "version": "2.8.2", "sha256": "d" * 64},
            "artefact": {"name": wheel.name, "bytes": wheel.stat().st_size, "sha256": sha256(wheel.read_bytes())},
        }],
    }  # fmt: skip
    folder = tmp_path / "manifests"
    folder.mkdir()
    sbom = make_sbom(subject_of(manifest), held)
    (folder / "x.cdx.json").write_text(sbom)
    told = {"name": "x.cdx.json", "sha256": sha256(sbom.encode()), "format": "CycloneDX 1.6"}
    statement = json.dumps(
        make_provenance(
            manifest, target=load_matrix().targets["flagtree"], inspection=base_facts(), sbom=told, engine="20.10",
            layers=Layers(("sha256:1", "sha256:2"), 1),
        )
    )  # fmt: skip
    (folder / "x.provenance.json").write_text(statement)
    beside = {"name": "x.provenance.json", "sha256": sha256(statement.encode()), "format": PREDICATE}
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "attestations": {"sbom": told, "provenance": beside}})
    )
    return Ground(folder, tmp_path / "cache", held, labels)


def all_rows(ground: Ground, evidence: Evidence) -> list[Row]:
    from build.attest.sbom import files_of

    listed = files_of(evidence.sbom.content) if evidence.sbom and evidence.sbom.content else {}
    return [
        *manifest_rows(evidence),
        *image_rows(evidence.manifest, IMAGE, ground.labels),
        *content_rows(evidence, ground.held, ground.labels, ""),
        *artefact_rows(evidence.manifest, listed),
    ]


def wrong(rows: list[Row]) -> list[str]:
    return [row.fact for row in rows if row.state == "differs"]
