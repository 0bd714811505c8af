"""The benchmark of grammars: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import grammars
from deepinfer.errors import CheckpointError, DeepInferError, UsageError
from tests.engine.held_grammars import threads

SMALL = ("--device", "cpu", "--vocabulary", "300", "--properties", "3")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgrammar", reason="xgrammar is absent: no grammar can be compiled")
    monkeypatch.setattr(grammars, "BEFORE", 2)


def test_both_ways_are_timed(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grammars.main(["--model", str(tiny_folder), *SMALL, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["nothing", "in the engine's thread", "in a thread beside it"]
    assert [one["first_token_s"] > 0 for one in told.values()] == [False, True, True]
    assert all(one["longest_step_s"] >= one["median_step_s"] > 0 for one in told.values()) and not threads()
    assert grammars._table(told).count("\n") == 4


def test_what_fails_is_told(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="argument --properties: '0' is no whole number from 1 to"):
        grammars.main(["--properties", "0"])
    with pytest.raises(CheckpointError, match="nowhere is no folder"):
        grammars.main(["--model", str(tmp_path / "nowhere"), *SMALL])
    monkeypatch.setattr(grammars, "_text_of_at_most", lambda _: {"type": "string", "maxLength": 0, "minLength": 1})
    with pytest.raises((DeepInferError, ValueError), match="structure"):
        grammars.main(["--model", str(tiny_folder), *SMALL])
