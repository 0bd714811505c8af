"""The table of environment variables, its readers, and the page made from it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer import envs
from deepinfer.errors import VariableError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "deepinfer"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_flags_that_are_on(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DEEPINFER_DEBUG", text)
    assert envs.DEBUG.get() is True


@pytest.mark.parametrize("text", ["0", "False", "no", "off", ""])
def test_flags_that_are_off(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DEEPINFER_DEBUG", text)
    assert envs.DEBUG.get() is False


def test_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", "~/kernels")
    assert envs.CACHE_DIR.get() == Path("/home/someone/kernels")
    monkeypatch.delenv("DEEPINFER_CACHE_DIR")
    assert envs.CACHE_DIR.get() is None


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [("DEEPINFER_DEBUG", "2", "0 or 1"), ("DEEPINFER_REQUIRE_C", "maybe", "0 or 1"),
     ("DEEPINFER_CACHE_DIR", "relative/folder", "absolute path"), ("DEEPINFER_CACHE_DIR", "/a:/b", "without a colon"),
     ("DEEPINFER_HOME", "~nobody-of-that-name/x", "absolute path")],
)  # fmt: skip
def test_a_bad_value_names_the_variable_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, allowed: str
) -> None:
    monkeypatch.setenv(name, text)
    (variable,) = (variable for variable in envs.VARIABLES if variable.name == name)
    with pytest.raises(VariableError) as caught:
        variable.get()
    assert f"{name}={text!r}" in str(caught.value) and allowed in str(caught.value)
    assert "unset it" in caught.value.next_step
    assert [problem.what for problem in envs.problems()] == [caught.value.what]


def test_unknown_names_get_the_nearest_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_CACHEDIR", "/x")
    monkeypatch.setenv("DEEPINFER_ENTIRELY_ELSE", "1")
    unknown = envs.unknown()
    assert unknown["DEEPINFER_CACHEDIR"] == "DEEPINFER_CACHE_DIR"
    assert unknown["DEEPINFER_ENTIRELY_ELSE"] == ""


def test_another_programs_variable_is_set_only_where_the_user_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = envs.Foreign("SOME_CACHE", "", ("SOME_HOME",))
    for name in ("SOME_CACHE", "SOME_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOME_HOME", "/user")
    assert not envs.set_unless_settled(ours, "/ours") and envs.read(ours) == ""
    monkeypatch.delenv("SOME_HOME")
    monkeypatch.setenv("SOME_CACHE", "")
    assert not envs.set_unless_settled(ours, "/ours"), "set to nothing is set"
    monkeypatch.delenv("SOME_CACHE")
    assert envs.set_unless_settled(ours, "/ours") and envs.read(ours) == "/ours"
    monkeypatch.delenv("SOME_CACHE")


def test_names_are_unique_and_ours_start_alike() -> None:
    names = [variable.name for variable in (*envs.VARIABLES, *envs.FOREIGN)]
    assert len(set(names)) == len(names)
    assert all(variable.name.startswith(envs.PREFIX) and variable.meaning for variable in envs.VARIABLES)
    assert {variable.reader for variable in envs.VARIABLES} == {"engine", "build"}


def test_only_envs_touches_the_environment() -> None:
    """The rule that makes the table complete."""

    def touches(path: Path) -> bool:
        return any(
            isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv", "unsetenv")
            for node in ast.walk(ast.parse(path.read_text()))
        )

    assert [path for path in PACKAGE.rglob("*.py") if touches(path)] == [PACKAGE / "envs" / "__init__.py"]


def test_the_page_is_what_the_table_makes(run_python: Run) -> None:
    made = run_python("-m", "deepinfer.envs", "--markdown")
    assert made.returncode == 0, made.stderr
    written = (ROOT / "docs" / "environment.md").read_text()
    assert made.stdout == written, "python -m deepinfer.envs --markdown > docs/environment.md"
    assert all(f"`{variable.name}`" in written for variable in (*envs.VARIABLES, *envs.FOREIGN))
