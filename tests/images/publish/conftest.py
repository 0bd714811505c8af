"""What every test of publishing has: an engine, a registry, a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from build.containers import LABEL, Engine
from build.publish import connection
from tests.images.publish.releases import NAME
from tests.publish_stand_ins import RegistryProgram, running


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine.connect()
    yield found
    for image in found.client.images.list(filters={"label": f"{LABEL}.image={NAME}"}):
        found.client.images.remove(image.id, force=True)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a Docker configuration of the test's own, and short pauses."""
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(connection, "PAUSES", (0.05, 0.1))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProgram]:
    with running(tmp_path / "registry") as found:
        yield found
