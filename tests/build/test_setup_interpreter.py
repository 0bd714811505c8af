"""`./run` with an interpreter that the user names: what is missing there is told, nothing is installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.build.setup_project import BASE_PYTHON, Project, pure_wheel, wheel_of


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.make(tmp_path)


def test_given_interpreter_that_does_not_run(project: Project) -> None:
    ended = project.run("show", DEEPINFER_PYTHON="/nonexistent/python3")
    assert ended.code == 4 and "DEEPINFER_PYTHON=/nonexistent/python3" in ended.err


def test_given_interpreter_takes_packs_and_names_what_is_missing(project: Project, tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path / "made", "onlyhere", "1")
    project.lock("build", wheel_of("invoke"), wheel)
    packs = tmp_path / "my packs"
    (packs / "wheels").mkdir(parents=True)
    shutil.copy(wheel_of("invoke"), packs / "wheels")
    given = {"DEEPINFER_PYTHON": BASE_PYTHON}
    missing = project.run("show", "--offline", str(packs), **given)
    assert missing.code == 4 and "onlyhere==1" in missing.err and "invoke==" not in missing.err
    command = project.run("--offline", str(packs), "--", "true", **given)
    assert command.code == 0 and "onlyhere==1" in command.err
    shutil.copy(wheel, packs / "wheels")
    ended = project.run("--offline", "my packs", "show", cwd=tmp_path, **given)
    assert ended.code == 0, ended.err
    seen = json.loads(ended.out)
    assert seen["python"] == BASE_PYTHON and seen["invoke"].startswith(str(project.cache / "packs"))
    assert not (project.root / ".venv").exists() and seen["setup"] == "0"
    (packs / "wheels" / wheel.name).write_bytes(wheel.read_bytes() + b"\0")
    damaged = project.run("--offline", str(packs), "show", **given)
    assert damaged.code == 4 and "its sha256 differs" in damaged.err
