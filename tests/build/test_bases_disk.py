"""The engine's disk: known where the engine is this machine's own, unknown where the user named one."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from build.bases import disk
from build.containers import Engine
from build.errors import EnvironmentCannot


def engine(**facts: str) -> Engine:
    """An engine that tells these facts; the docker package reaches it by a socket, as one behind ssh too."""
    client = SimpleNamespace(info=lambda: facts, api=SimpleNamespace(base_url="http+docker://localhost"))
    return cast(Engine, SimpleNamespace(client=cast(Any, client)))


@pytest.fixture(autouse=True)
def nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def test_the_disk_of_this_machines_engine(tmp_path: Path) -> None:
    here = engine(DockerRootDir=str(tmp_path))
    assert disk.engine_folder(here) == tmp_path
    assert disk.free_gb(here) == pytest.approx(shutil.disk_usage(tmp_path).free / 1e9, rel=0.5)
    with pytest.raises(EnvironmentCannot, match="a base needs 1000000000"):
        disk.need(here, 1e9, "a base")


@pytest.mark.parametrize("host", ["ssh://build@big", "tcp://10.0.0.1:2375", "unix:///run/forwarded.sock"])
def test_the_disk_of_an_engine_that_was_named_is_not_looked_for_here(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    there = engine(DockerRootDir=str(tmp_path))
    assert disk.engine_folder(there) is None and disk.free_gb(there) is None
    disk.need(there, 1e9, "a base")


@pytest.mark.parametrize("facts", [{}, {"DockerRootDir": ""}, {"DockerRootDir": "/nonexistent"}])
def test_an_engine_that_names_no_folder_of_this_machine(facts: dict[str, str]) -> None:
    assert disk.engine_folder(engine(**facts)) is None
