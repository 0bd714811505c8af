"""Whoever asks for JSON gets a document on stdout, of an error as of a result, wherever it comes from; and one only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

from build import pipeline, verbs
from build.attest import command
from build.cache import REPOSITORY
from build.command import told_plainly
from build.errors import CellFailed, EnvironmentCannot, GateFailed, MatrixError
from build.outcome import Outcome
from build.setup.request import asks_json
from tests.image_stand_ins import base_facts

NOWHERE = "unix:///nonexistent/docker.sock"


def started(program: str, *words: str, **variables: str) -> tuple[int, Any]:
    """Run a program of build/setup; its exit code, and what it printed as JSON."""
    argv = [sys.executable, "-P", str(REPOSITORY / "build/setup" / program), *words]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "DOCKER_HOST": NOWHERE, **variables}
    done = subprocess.run(argv, cwd="/", env=environment, capture_output=True, text=True, timeout=120)
    assert "error: " in done.stderr and "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("plan --json", True),
        ("--search-root / plan --image x --json", True),
        ("plan", False),
        ("test -- --json", False),
        ("-- python -m json.tool --json", False),
        ("matrix --format json", True),
        ("matrix --format=json", True),
        ("matrix --format github", False),
        ("matrix --format", False),
    ],
)
def test_which_command_lines_ask_for_json(line: str, asked: bool) -> None:
    assert asks_json(line.split()) is asked


def test_an_error_has_the_parts_that_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(Exit) as ending, told_plainly(as_json=True):
        raise CellFailed("it broke", cause="a typo", next_step="mend it", log=tmp_path / "c.log")
    out, err = capsys.readouterr()
    assert ending.value.code == 6 and err.startswith("error: it broke\n")
    assert json.loads(out) == {
        "error": "it broke", "cause": "a typo", "log": str(tmp_path / "c.log"), "next_step": "mend it", "exit_code": 6,
    }  # fmt: skip


def test_an_interruption_is_json_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit), told_plainly(as_json=True):
        raise KeyboardInterrupt
    assert json.loads(capsys.readouterr().out) == {"error": "interrupted", "exit_code": 130}


def test_what_was_given_before_the_end_stays_the_only_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit), told_plainly(as_json=True) as answer:
        answer.give([{"image": "a"}])
        raise KeyboardInterrupt
    assert json.loads(capsys.readouterr().out) == [{"image": "a"}]
    with pytest.raises(Exit), told_plainly() as silent:
        silent.give("nobody asked")
        raise MatrixError("wrong")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("plan", "--json", "--imag", "x"), 1),
        (("plan", "--json", "--image", "flagtre"), 3),
        (("plan", "--base", "x", "--json"), 1),
        (("matrix", "--format", "json", "--image", "x*"), 3),
        (("verify", "deepinfer:x", "--json"), 4),
        (("verify", "--json"), 1),
        (("publish", "--json"), 1),
        (("publish", "--registry", "x.example/y", "--json"), 4),
        (("publish", "--from", "/nonexistent/x.tar", "--json"), 4),
        (("check", "--gpus", "many", "--json"), 1),
        (("inspect", "--image", "cpu", "--json"), 4),
        (("build", "--image", "flagtre", "--json"), 3),
        (("build", "--jobs", "0", "--json"), 1),
    ],
)
def test_a_verbs_failures(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    place = {"DEEPINFER_BUILD_CACHE": str(tmp_path / "cache")}
    returned, told = started("program.py", "alone", "--search-root", str(REPOSITORY), *words, **place)
    assert returned == code == told["exit_code"] and told["error"]


def test_what_fails_before_the_verb_starts(tmp_path: Path) -> None:
    place = {"DEEPINFER_BUILD_CACHE": str(tmp_path / "cache")}
    for words, code in ((("--nonsense", "plan", "--json"), 1), (("--no-setup", "check", "--json"), 4)):
        returned, told = started("bootstrap.py", *words, DEEPINFER_PYTHON="", **place)
        assert returned == code == told["exit_code"]
    words = ("with-engine", "--search-root", str(REPOSITORY), "inspect", "--image", "cpu", "--json")
    returned, told = started("program.py", *words, **place)
    assert returned == 4 and told["error"].startswith("no Docker engine answers")


def test_a_current_folder_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = REPOSITORY / "build/setup/bootstrap.py"
    script = f'rmdir "$PWD"; exec {sys.executable} -P {program} plan --json'
    done = subprocess.run(["sh", "-c", script], cwd=gone, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"] == 4 and "the current folder is not there" in told["error"]


class OnlyCpu:
    """An engine that has `deepinfer:cpu` and no other image."""

    def image_id(self, reference: str) -> str | None:
        return "sha256:" + "1" * 64 if reference == "deepinfer:cpu" else None


@pytest.fixture
def only_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (verbs, command):
        monkeypatch.setattr(module.Engine, "connect", lambda: OnlyCpu())


def built(begun: list[str]) -> Any:
    def build_target(matrix: Any, target: Any, options: Any) -> Outcome:
        begun.append(target.name)
        if target.name == "vllm":
            raise EnvironmentCannot("no space", next_step="free it")
        if target.name == "flagos":
            raise KeyboardInterrupt
        return Outcome(target.name, "built", f"deepinfer:{target.name}", image_id="sha256:1")

    return build_target


def test_a_build_is_a_row_for_each_image_and_one_that_is_not_possible_has_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(pipeline, "build_target", built(begun))
    rows: list[Any] = []
    assert verbs.build("flagtree,vllm,cpu", verbs.BuildOptions(), rows.append) == 4
    done = {"image": "flagtree", "status": "built", "seconds": 0, "tag": "deepinfer:flagtree", "image_id": "sha256:1"}
    failed = {"status": "not possible", "seconds": 0, "error": "no space", "next_step": "free it", "exit_code": 4}
    assert rows == [[done, {"image": "vllm", **failed}, {"image": "cpu", "status": "not done"}]]
    assert begun == ["flagtree", "vllm"]
    assert verbs.build("vllm,cpu", verbs.BuildOptions(keep_going=True), rows.append) == 4
    assert [row["status"] for row in rows[1]] == ["not possible", "built"] and capsys.readouterr().out == ""
    with pytest.raises(KeyboardInterrupt):
        verbs.build("flagtree,flagos", verbs.BuildOptions(), rows.append)
    assert rows[2] == [done, {"image": "flagos", "status": "not done"}]


def test_a_build_that_cannot_begin_is_a_row_as_well(tmp_path: Path) -> None:
    words = ("alone", "--search-root", str(REPOSITORY), "build", "--image", "cpu", "--json")
    returned, told = started("program.py", *words, DEEPINFER_BUILD_CACHE=str(tmp_path / "cache"))
    assert [(row["image"], row["exit_code"]) for row in told] == [("cpu", 4)] and returned == 4
    assert told[0]["error"].startswith("no Docker engine answers") and told[0]["next_step"]


@pytest.mark.usefixtures("only_cpu")
def test_of_several_images_those_that_are_here_are_checked_and_no_failure_hides_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(matrix: Any, target: Any, *, gpus: int) -> Any:
        if target.name == "vllm":
            raise EnvironmentCannot("its base is gone")
        return [], []

    monkeypatch.setattr(pipeline, "check_image", checked)
    assert verbs.check("*", gpus=0, offline=None, prefix=None, as_json=True) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["cpu"] and "not built here, and left out: flagtree, vllm, flagos" in err
    assert verbs.check("vllm,cpu", gpus=0, offline=None, prefix=None, as_json=True) == 4
    told = json.loads(capsys.readouterr().out)
    assert told["vllm"] == {"error": "its base is gone", "exit_code": 4} and told["cpu"] == {"gates": [], "gpu": []}


@pytest.mark.usefixtures("only_cpu")
def test_of_several_bases_each_is_looked_into_and_no_failure_hides_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def looked_into(target: Any, base: str) -> Any:
        if target.name == "vllm":
            raise EnvironmentCannot("it cannot be pulled")
        return "replica", base_facts()

    monkeypatch.setattr(pipeline, "inspect_target", looked_into)
    assert verbs.inspect("vllm,cpu", "auto", as_json=True) == 4
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["vllm"] == {"error": "it cannot be pulled", "exit_code": 4} and told["cpu"]["torch"]
    assert "error: it cannot be pulled" in err
    assert verbs.inspect("vllm,cpu", "auto", as_json=False) == 4
    assert capsys.readouterr().out.startswith("cpu, replica: ")


@pytest.mark.usefixtures("only_cpu")
def test_of_several_images_each_is_verified_and_one_that_cannot_be_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verified(engine: Any, reference: str, **_: Any) -> command.Report:
        if reference == "deepinfer:vllm":
            raise GateFailed("its manifest is none")
        return command.Report(reference, "sha256:1", "/m.json", ())

    monkeypatch.setattr(command, "verify_image", verified)
    assert command.run("*", manifest=None, key="", sign=False, as_json=True) == 0
    assert [entry["image"] for entry in json.loads(capsys.readouterr().out)] == ["deepinfer:cpu"]
    assert command.run("vllm,cpu", manifest=None, key="", sign=False, as_json=True) == 5
    told = json.loads(capsys.readouterr().out)
    assert told[0] == {"image": "deepinfer:vllm", "ok": False, "error": "its manifest is none", "exit_code": 5}
    assert told[1]["ok"] is True
