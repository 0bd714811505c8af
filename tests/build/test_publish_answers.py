"""Answers of a registry that have another shape than the standard's: told or passed over, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from build.containers import Engine
from build.publish.connection import Damaged
from build.publish.location import IMAGES, Location
from build.publish.manifests import OCI_INDEX, OCI_MANIFEST, Manifest
from build.publish.read_back import read_back
from build.publish.referrers import listed
from build.publish.registry import Registry
from tests.publish_stand_ins import Answers


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def opened(body: object) -> Registry:
    """A registry that gives this as JSON to every question."""
    headers = {"Content-Type": OCI_INDEX}
    server = Answers(lambda method, path, authorization: (200, headers, json.dumps(body).encode()))
    return Registry(Location(server.host), IMAGES, plain=True, pauses=(), patience=10)


@pytest.mark.parametrize("manifests", [5, "x", {"a": 1}, None, [7]])
def test_a_list_of_referrers_that_is_none(manifests: object) -> None:
    assert listed(opened({"schemaVersion": 2, "manifests": manifests}), "sha256:" + "0" * 64) == []


@pytest.mark.parametrize(
    "layers", [5, ["x"], [{}], [{"digest": "sha256:x", "size": None}], [{"digest": 1, "size": "x"}]]
)
def test_layers_that_are_none(layers: object) -> None:
    class Holds:
        def image_config(self, image_id: str) -> dict[str, Any]:
            return {"RootFS": {"Layers": ["sha256:" + "1" * 64]}}

    manifest = Manifest(json.dumps({"layers": layers}).encode(), OCI_MANIFEST)
    with pytest.raises(Damaged):
        read_back(cast(Engine, Holds()), opened({}), manifest, "sha256:" + "2" * 64)
