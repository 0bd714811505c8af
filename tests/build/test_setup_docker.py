"""Docker's engine: asked, refused, started apart and stopped, and never mistaken for another process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.errors import EnvironmentCannot
from build.processes import identity
from build.setup import docker_engine, dockerd, engine_answer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def _record(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "cache" / "docker" / "dockerd.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(changes))
    return path


def test_process_with_a_reused_id_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    known = identity(sleeper.pid)
    for change in ({"started": 1}, {"boot": "another"}):
        record = _record(tmp_path, **{**known, **change})
        assert dockerd.started_by_us() is None
        assert dockerd.stop() is None and sleeper.poll() is None
        assert not record.exists()


def test_recorded_process_is_stopped(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    record = _record(tmp_path, **identity(sleeper.pid))
    assert dockerd.started_by_us() == sleeper.pid
    assert dockerd.stop() == sleeper.pid and dockerd.started_by_us() is None
    assert not record.exists() and dockerd.stop() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', '{"pid": 999999999, "started": 1, "boot": "b"}'])
def test_record_that_means_nothing(tmp_path: Path, text: str) -> None:
    path = _record(tmp_path)
    path.write_text(text)
    assert dockerd.started_by_us() is None and dockerd.stop() is None


@pytest.mark.parametrize("host", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1"])
def test_docker_host_is_neither_installed_nor_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert engine_answer.refusal()
    with pytest.raises(EnvironmentCannot) as told:
        docker_engine.ensure(may_install=True, stays=True)
    assert told.value.exit_code == 4 and host in told.value.what and told.value.cause
    assert not (tmp_path / "cache" / "docker").exists()
    assert docker_engine.refused(may_install=True) is not None


def test_refused_start_prints_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine_answer, "DEFAULT_SOCKET", str(tmp_path / "no.sock"))
    with pytest.raises(EnvironmentCannot, match=r"no Docker engine answers") as told:
        docker_engine.ensure(may_install=False, stays=True)
    assert "--no-setup" in told.value.cause and "dockerd" in told.value.next_step


@pytest.fixture
def isolated_dockerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a dockerd first on PATH that lives in a network of its own; gives the options that keep its files apart.

    In this machine's network a second dockerd would take the first one's bridge away.
    """
    program = shutil.which("dockerd", path=dockerd.system_path())
    if os.geteuid() != 0 or program is None:
        pytest.skip("starts dockerd, which is not installed or needs root")
    wrapper = tmp_path / "bin" / "dockerd"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec unshare --net -- {program} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine_answer, "DEFAULT_SOCKET", str(tmp_path / "docker.sock"))
    folders = [f"--data-root={tmp_path}/data", f"--exec-root={tmp_path}/exec", f"--pidfile={tmp_path}/pid"]
    return [f"--host=unix://{tmp_path}/docker.sock", *folders, "--bridge=none", "--iptables=false", "--ip-masq=false"]


@pytest.mark.docker
def test_engine_is_started_apart_and_stopped(isolated_dockerd: list[str]) -> None:
    assert dockerd.start(stays=True, options=isolated_dockerd)
    pid = dockerd.started_by_us()
    assert pid is not None and engine_answer.refusal() == ""
    assert os.getsid(pid) == pid  # a session of its own: the terminal's end does not end it
    assert not dockerd.start(stays=True, options=isolated_dockerd)
    with docker_engine.running(may_install=False):
        pass
    assert dockerd.started_by_us() == pid, "one that ran before stays"
    assert dockerd.stop() == pid and engine_answer.refusal()


@pytest.mark.docker
def test_engine_that_cannot_start_is_told_with_its_log(isolated_dockerd: list[str]) -> None:
    with pytest.raises(EnvironmentCannot, match="does not answer") as told:
        dockerd.start(stays=True, options=["--no-such-option"])
    assert told.value.log is not None and "no-such-option" in told.value.log.read_text()
    assert dockerd.started_by_us() is None


def test_who_may_not_use_the_engine_that_is_there_is_not_told_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "docker.sock"
    monkeypatch.setattr(engine_answer, "DEFAULT_SOCKET", str(path))
    monkeypatch.setattr(docker_engine.system, "is_root", lambda: False)
    assert any("dockerd" in line or "start docker" in line for line in docker_engine.commands())
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(path))
        monkeypatch.setattr(docker_engine.os, "access", lambda where, mode: False)  # root may use every socket
        lines = docker_engine.commands()
        monkeypatch.delenv("DOCKER_HOST", raising=False)
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        told = docker_engine.unanswered("Permission denied")
    assert told.what.endswith(str(path)) and lines[-1] in told.next_step and "as root" not in told.next_step
    assert "usermod -aG docker" in lines[-1]
    assert not any("sh -c" in line or "start docker" in line for line in lines)
