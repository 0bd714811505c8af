"""The statement of how an image came to be: subject, inputs with digests, and a sum for each fact of the manifest."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from build.attest.facts import fact_sums, manifest_facts
from build.attest.provenance import Layers, make_provenance, recorded_facts, recorded_layers
from build.cache import REPOSITORY
from build.errors import MatrixError
from build.locks import read_lock
from build.matrix.load import load_matrix
from tests.image_stand_ins import base_facts

SBOM = {"name": "cccccccccccc.cdx.json", "sha256": "5" * 64}
BASE = "sha256:" + "a" * 64
LAYERS = Layers(("sha256:" + "1" * 64, "sha256:" + "2" * 64), 1)


def manifest(**changes: object) -> dict[str, Any]:
    """A manifest with a cell of each kind of source."""

    def cell(name: str, source: dict[str, str], **more: object) -> dict[str, Any]:
        return {"cell": f"flagtree/{name}", "status": "built", "key": "4" * 64, "inputs": {}, "source": source, **more}

    return {
        "image": "flagtree",
        "image_id": "sha256:" + "b" * 64,
        "image_key": "c" * 64,
        "image_inputs": {"base": "x"},
        "tags": ["deepinfer:0.1.0-flagtree-replica-x", "deepinfer:flagtree"],
        "created": "2026-11-30T08:39:19Z",
        "base": {"kind": "replica", "reference": "here:x", "image_id": BASE, "digest": BASE},
        "labels": {
            "org.opencontainers.image.version": "0.1.0",
            "org.opencontainers.image.revision": "e" * 40 + "-modified",
            "org.opencontainers.image.source": "https://example.org/deepinfer",
        },
        "cells": [
            cell("deep_gemm", {"pypi": "deepinfer-gemm", "version": "2.8.2", "sha256": "d" * 64}),
            cell("_C", {"path": "."}, inputs={"source": "files:" + "9" * 64}),
            cell("other", {"git": "https://example.org/other", "commit": "f" * 40}),
            cell("deep_ep", {"pypi": "deepinfer-ep", "version": "2.5.0", "sha256": "3" * 64}, status="unsupported"),
        ],
        "passed": True,
        **changes,
    }  # fmt: skip


def statement(made: dict[str, Any] | None = None) -> dict[str, Any]:
    return make_provenance(
        made or manifest(), target=load_matrix().targets["flagtree"], inspection=base_facts(), layers=LAYERS, sbom=SBOM,
        engine="20.10.24",
    )  # fmt: skip


def inputs() -> dict[str, dict[str, Any]]:
    told = statement()["predicate"]["buildDefinition"]["resolvedDependencies"]
    return {entry["name"]: entry for entry in told}


def test_it_is_a_statement_of_slsa_about_the_image() -> None:
    made = statement()
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"] == [{"name": "deepinfer:0.1.0-flagtree-replica-x", "digest": {"sha256": "b" * 64}}]
    definition, details = made["predicate"]["buildDefinition"], made["predicate"]["runDetails"]
    assert re.match(r"[a-z]+:", definition["buildType"]) and re.match(r"[a-z]+:", details["builder"]["id"])
    assert details["byproducts"][0] == {"name": SBOM["name"], "digest": {"sha256": SBOM["sha256"]}}
    assert recorded_layers(made) == LAYERS


def test_every_input_is_there_with_its_digest() -> None:
    told = inputs()
    assert told["base"]["digest"] == {"sha256": "a" * 64}
    assert told["repository"]["digest"] == {"gitCommit": "e" * 40}
    assert told["repository"]["annotations"] == {"modified": True}
    assert told["source of flagtree/deep_gemm"]["uri"] == "pkg:pypi/deepinfer-gemm@2.8.2"
    assert told["source of flagtree/deep_gemm"]["digest"] == {"sha256": "d" * 64}
    assert told["source of flagtree/other"]["digest"] == {"gitCommit": "f" * 40}
    assert told["source of flagtree/_C"]["annotations"] == {"files": "files:" + "9" * 64}
    for name in ("matrix.yaml", "images/flagtree/runtime.lock", "images/flagtree/replica.lock", "images/Dockerfile"):
        assert re.fullmatch("[0-9a-f]{64}", told[name]["digest"]["sha256"]), name


def test_the_builders_packages_are_those_of_its_lock() -> None:
    told = inputs()
    pins = read_lock(REPOSITORY / "images/builder/packages.lock").pins
    assert pins
    for pin in pins:
        entry = told[f"builder: {pin.name}"]
        assert entry["uri"] == f"pkg:pypi/{pin.name}@{pin.version}"
        sums = [entry["digest"]["sha256"]] if "digest" in entry else entry["annotations"]["sha256"]
        assert sums == sorted(pin.hashes)


def test_what_was_not_used_is_no_input() -> None:
    assert "source of flagtree/deep_ep" not in inputs()
    vendor = {**manifest()["base"], "kind": "vendor"}
    told = statement(manifest(base=vendor))["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert "images/flagtree/replica.lock" not in [entry["name"] for entry in told]


def test_the_same_build_gives_the_same_statement() -> None:
    assert json.dumps(statement(), sort_keys=True) == json.dumps(statement(copy.deepcopy(manifest())), sort_keys=True)


def test_a_checkout_without_git_has_no_commit() -> None:
    labels = {**manifest()["labels"], "org.opencontainers.image.revision": "unknown"}
    told = statement(manifest(labels=labels))["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert "digest" not in next(entry for entry in told if entry["name"] == "repository")


def test_a_lock_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises((MatrixError, OSError)):
        make_provenance(
            manifest(), target=load_matrix().targets["flagtree"], inspection=base_facts(), layers=LAYERS, sbom=SBOM,
            engine="", repository=tmp_path,
        )  # fmt: skip


def test_every_fact_of_the_manifest_has_a_name_and_a_sum() -> None:
    made = manifest(attestations={"sbom": SBOM}, cells=(manifest()["cells"][0],), empty=[], number=1.5)
    facts = manifest_facts(made)
    assert facts["cells[flagtree/deep_gemm].source.sha256"] == json.dumps("d" * 64)
    assert facts["tags[1]"] == '"deepinfer:flagtree"'
    assert (facts["empty"], facts["number"], facts["passed"]) == ("[]", "1.5", "true")
    assert not any(name.startswith("attestations") for name in facts)
    assert recorded_facts(statement(made)) == fact_sums(made)
    # As it is read again from its file, where tuples are lists.
    assert fact_sums(json.loads(json.dumps(made))) == fact_sums(made)


def test_entries_of_one_name_are_told_by_number() -> None:
    facts = manifest_facts({"gates": [{"name": "a", "ok": True}, {"name": "a", "ok": False}]})
    assert facts["gates[1].ok"] == "false"


@pytest.mark.parametrize(
    "damage", [{}, {"predicate": {}}, {"predicate": None}, {"predicate": {"runDetails": {"byproducts": []}}}]
)
def test_a_damaged_statement_is_no_statement(damage: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        recorded_facts(damage)
