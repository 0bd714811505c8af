"""What the distribution has to give before `.venv` can be made: all told at once, or installed by root."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build.errors import EnvironmentCannot
from build.setup import install, system
from build.setup.environment import Environment

ALL = ("build", "test", "engine")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A repository without `.venv`, on a machine whose Python lacks venv and that has no compiler."""
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(install.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "locks").mkdir()
    for name in ("build", "test"):
        (tmp_path / "locks" / f"{name}.lock").write_text("")
    return Environment(tmp_path)


def test_packages_are_named_together_to_who_cannot_install_them(
    bare: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    told = install.lacking(bare, ALL)
    assert told is not None and told.exit_code == 4 and "needs root" in told.cause
    assert told.next_step.startswith("sudo apt-get update && sudo apt-get install")
    for package in ("g++", "-dev", "-venv"):
        assert package in told.what and package in told.next_step
    only_venv = install.lacking(bare, ("build",))
    assert only_venv is not None and "-venv" in only_venv.what and "g++" not in only_venv.what
    with pytest.raises(EnvironmentCannot, match=r"g\+\+ .*-venv"):
        install.ensure(bare, ALL, may_install=True)
    assert not bare.folder.exists()


def test_nothing_is_lacking_for_root_or_where_all_is_there(bare: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    assert install.lacking(bare, ALL) is None
    monkeypatch.setattr(system, "is_root", lambda: False)
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: object())
    assert install.lacking(bare, ("build",)) is None


def test_the_host_gets_a_compiler_if_it_can_be_had(
    bare: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    install.provide_compiler()  # no apt-get in PATH: told, and no failure
    assert "g++" in capsys.readouterr().err
    asked: list[list[str]] = []
    monkeypatch.setattr(system, "install", lambda packages, why, *, may_install: asked.append(packages))
    install.provide_compiler()
    assert len(asked) == 1 and "g++" in asked[0]
    monkeypatch.setattr(system, "is_root", lambda: False)
    install.provide_compiler()
    assert len(asked) == 1


def test_a_long_step_says_what_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(install, "QUIET_S", 0.05)
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text)
        (tmp_path / "told").touch()

    monkeypatch.setattr(system, "say", say)
    until_told = ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done', str(tmp_path / "told")]
    with (tmp_path / "lock").open("w") as lock:
        install._run(until_told, "compile deepinfer._C and install the engine", lock.fileno())
    assert re.match(r"still at it after \d+ s: compile deepinfer._C and install the engine \(log: ", told[0])
