"""`clean --docker` stops the dockerd that `./run` started, and only when nobody needs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from build import cache
from build.clean.verb import run
from build.containers import Engine
from build.errors import EnvironmentCannot
from build.processes import identity
from build.setup import engine_answer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    return cache.root()


def test_docker_stops_the_recorded_process_alone(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, other = subprocess.Popen(["sleep", "300"]), subprocess.Popen(["sleep", "300"])
    try:
        (cache.folder("docker") / "dockerd.json").write_text(json.dumps(identity(ours.pid)))
        run(docker=True, yes=True)
        assert other.poll() is None and f"stopped dockerd (process {ours.pid})" in capsys.readouterr().err
        run(docker=True)
        assert "no dockerd that ./run started is running" in capsys.readouterr().err
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


class Busy:
    """An engine in which a container runs."""

    def __init__(self) -> None:
        self.client = self.containers = self

    def list(self, **_: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="a_database")]


def test_dockerd_is_not_stopped_under_a_build_or_under_somebodys_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine_answer, "refusal", lambda: "")
    monkeypatch.setattr(Engine, "connect", lambda: Busy())
    ours = subprocess.Popen(["sleep", "300"])
    try:
        (cache.folder("docker") / "dockerd.json").write_text(json.dumps(identity(ours.pid)))
        for yes in (False, True):
            with cache.locked("image-cpu"), pytest.raises(EnvironmentCannot, match="a build is using the engine"):
                run(docker=True, yes=yes)
        with pytest.raises(EnvironmentCannot, match="and would end with it: a_database") as told:
            run(docker=True)
        assert "--yes" in told.value.next_step and ours.poll() is None
        assert run(docker=True, yes=True) == 0 and ours.wait(120) != 0
    finally:
        ours.kill()
        ours.wait()
