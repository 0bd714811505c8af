"""The benchmarks of the host, `benchmarks.batch` and `benchmarks.load`: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import batch, load
from deepinfer.command_line import exit_code
from deepinfer.errors import ConfigError, DeepInferError, UsageError


def test_packing_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch.main(["--sequences", "3", "--context", "1", "--steps", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sequences"], told["context"]) == (3, 1)
    assert all(told[name] > 0 for name in ("rows_ms", "anew_ms", "kept_ms"))


def test_a_compiled_part_that_does_not_load_is_not_told_as_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_rows_ms", "_batch_ms"):
        monkeypatch.setattr(batch, name, lambda *_: 1.0)
    for reason in ("", "it was built for another torch"):
        monkeypatch.setattr("deepinfer.native.load", lambda reason=reason: (None, reason))
        assert batch.main(["--sequences", "1", "--context", "1", "--steps", "1"]) == 0
        assert json.loads(capsys.readouterr().out)["compiled"] == (reason == "")


@pytest.mark.parametrize("option", ["--sequences", "--context", "--steps"])
@pytest.mark.parametrize("value", ["0", "-1", "x", "2147483648"])
def test_counts_of_packing_that_are_none(option: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"argument {option}: '{value}' is no whole number from 1 to"):
        batch.main([option, value])


@pytest.mark.parametrize("value", ["0.2", "-1.0", "nan", "inf"])
def test_sizes_of_a_checkpoint_that_are_none(value: str) -> None:
    with pytest.raises(UsageError, match=f"--gib must be a number of at least 0.3, not {value}"):
        load.main(["--device", "cpu", "--gib", value])


def test_folders_that_are_none_are_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be written"):
        load.main(["--device", "cpu", "--folder", str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match="there is no such folder"):
        load.main(["--device", "cpu", "--model", str(tmp_path / "nowhere"), "--folder", str(tmp_path)])
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("options", [["--device", "cuda"], ["--device", "cpu", "--engram-device", "cuda"]])
def test_without_a_gpu(options: list[str]) -> None:
    with pytest.raises(DeepInferError, match="PyTorch sees no GPU") as told:
        load.main(options)
    assert told.value.exit_code == 4


def test_failures_are_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda: batch.main(["--stpes", "3"])) == 1
    assert "did you mean '--steps'?" in capsys.readouterr().err
