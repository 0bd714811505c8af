"""`doctor` finds what is missing and says what to type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker.errors import DockerException

from build import doctor
from build.cache import REPOSITORY
from build.doctor import Row
from build.errors import EnvironmentCannot
from build.setup import engine_answer, system
from build.setup.environment import Environment


def _rows(**changes: str) -> tuple[int, dict[str, dict[str, str]]]:
    program = "import sys; from build import doctor; sys.exit(doctor.run(json=True))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, {row["name"]: row for row in json.loads(done.stdout)}


def test_engine_that_does_not_answer_is_a_failed_row_and_exit_4(tmp_path: Path) -> None:
    code, rows = _rows(DOCKER_HOST="unix:///nonexistent/docker.sock", DEEPINFER_BUILD_CACHE=str(tmp_path / "cache"))
    assert code == 4
    assert rows["Docker engine"]["status"] == "fail" and "/nonexistent/docker.sock" in rows["Docker engine"]["detail"]
    assert rows["locks"]["status"] == "ok" and "memory" in rows and {"GPU", "GPU 0"} & rows.keys()
    assert rows["build cache"]["detail"].startswith(str(tmp_path / "cache"))


def test_interpreter_without_torch_is_a_row_with_the_command(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    _, rows = _rows(DEEPINFER_PYTHON=str(bare / "bin" / "python"), DOCKER_HOST="unix:///nonexistent/docker.sock")
    row = rows["torch for the host"]
    assert row["status"] == "warn" and f"{bare}/bin/python has no torch" in row["detail"]
    assert f"{bare}/bin/python -m pip install torch" in row["next_step"]


def test_interpreter_that_is_not_there_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_PYTHON", "/nonexistent/python")
    rows = [row for row in doctor.examine(online=False) if row.status == "fail"]
    assert any("DEEPINFER_PYTHON=/nonexistent/python is not a program" in row.detail for row in rows)


def test_a_cache_that_cannot_be_made_does_not_end_the_examination(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "file" / "cache"))
    rows = {row.name: row for row in doctor.examine(online=False)}
    assert rows["cache"].status == "fail" and "DEEPINFER_BUILD_CACHE" in rows["cache"].next_step
    assert "GPU" in rows or "GPU 0" in rows


def test_an_engine_that_goes_away_meanwhile_does_not_end_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        @property
        def client(self) -> None:
            raise DockerException("the engine went away")

    monkeypatch.setattr(engine_answer, "refusal", lambda: "")
    monkeypatch.setattr(doctor.Engine, "connect", Gone)
    rows = {row.name: row for row in doctor.examine(online=True)}
    assert "the engine went away" in rows["engine"].detail and rows["engine"].status == "fail"
    assert rows["storage"].status == rows["registries"].status == "fail" and "memory" in rows and "build cache" in rows


def test_an_nvidia_smi_that_names_no_gpu_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H20, 9.0, 580.1'\necho 'No devices were found'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    rows = list(doctor._gpu())
    assert [(row.name, row.status) for row in rows] == [("GPU 0", "ok"), ("GPU 1", "warn")]
    assert "No devices were found" in rows[1].detail


def test_disk_is_judged_by_what_a_build_needs(tmp_path: Path) -> None:
    assert doctor.disk_row("disk", tmp_path, 0.0, 0.0).status == "ok"
    assert doctor.disk_row("disk", tmp_path, 0.0, 1e9).status == "warn"
    full = doctor.disk_row("disk", tmp_path, 1e9, 1e9)
    assert full.status == "fail" and "clean --image" in full.next_step


def test_memory_is_judged_together_with_the_cores() -> None:
    assert doctor.memory_row(2.0, 8).status == "fail"
    assert ": 2 compiles at once" in doctor.memory_row(24.0, 2).detail
    assert ": 7 compiles at once" in doctor.memory_row(24.0, 64).detail
    assert ": 1 compile at once" in doctor.memory_row(4.0, 2).detail


def test_the_memory_is_what_a_container_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "host_memory", lambda: 2**31)
    (row,) = (row for row in doctor._machine() if row.name == "memory")
    assert row.status == "fail" and row.detail.startswith("2.0 GiB, and one compile takes")


@pytest.mark.parametrize(("root", "statuses"), [(True, {"warn"}), (False, {"fail"})])
def test_a_machine_without_docker_lacks_what_a_build_as_root_sets_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: bool, statuses: set[str]
) -> None:
    def none() -> tuple[str, ...]:
        raise EnvironmentCannot("no docker command here can build with BuildKit")

    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(doctor, "build_command", none)
    monkeypatch.setattr(engine_answer, "DEFAULT_SOCKET", str(tmp_path / "docker.sock"))
    monkeypatch.setattr(system, "is_root", lambda: root)
    rows = {row.name: row for row in doctor._engine()}
    assert {rows[name].status for name in ("BuildKit", "Docker engine")} == statuses
    assert "apt-get install" in rows["BuildKit"].next_step


def test_what_venv_holds_and_lacks_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment(tmp_path)
    monkeypatch.setattr(Environment, "missing", lambda self, sets: ["test", "engine"])
    row = doctor._environment(environment)
    assert row.status == "ok" and row.detail == (
        f"{tmp_path}/.venv holds the set build; `./run test` adds test and engine, which only tests and commands need"
    )


def test_table_puts_the_command_below_its_row() -> None:
    text = doctor.as_table([Row("one", "ok", "fine"), Row("second", "fail", "missing", "type this\n    and that")])
    assert text.splitlines() == [
        "ok    one     fine", "fail  second  missing", "              -> type this", "              -> and that",
    ]  # fmt: skip


def test_exit_code_follows_the_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for status, code in (("ok", 0), ("warn", 0), ("fail", EnvironmentCannot.exit_code)):
        row = Row("only", status, "detail")  # type: ignore[arg-type]
        monkeypatch.setattr(doctor, "examine", lambda *, online, row=row: iter([row]))
        assert doctor.run() == code and "detail" in capsys.readouterr().out


@pytest.mark.docker
def test_engine_that_answers_is_described() -> None:
    _, rows = _rows()
    assert rows["Docker engine"]["status"] in ("ok", "warn") and "storage" in rows["Docker engine"]["detail"]
    assert rows["BuildKit"]["status"] == "ok"
