"""Progress with tqdm and without: it counts, and is silent when it is told to be."""

from __future__ import annotations

import sys

import pytest

from deepinfer.cli import progress
from deepinfer.cli.progress import Progress


def test_without_tqdm_a_line_tells_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(progress, "_BETWEEN_S", 0.0)
    with Progress("requests", 3) as bar:
        bar.advance()
        bar.say("one failed")
    with Progress("weights", None, bytes_=True) as bar:
        bar.reach(2 * 10**9, 8 * 10**9)
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.splitlines()[:2] == ["requests: 1 of 3", "one failed"]
    assert seen.err.splitlines()[-1] == "weights: 2.00 GB of 8.00 GB"


def test_with_tqdm_there_is_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm", reason="tqdm is absent: there are plain lines")
    with Progress("weights", None, bytes_=True) as bar:
        bar.reach(5_000_000, 10_000_000)
        bar.say("a word")
        bar.reach(10_000_000, 10_000_000)
    seen = capsys.readouterr()
    assert seen.out == "" and "a word\n" in seen.err and "10.0M/10.0M" in seen.err


@pytest.mark.parametrize("installed", [True, False])
def test_an_error_before_anything_is_done_stands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: bool
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ValueError, match="no folder"), Progress("weights", None, bytes_=True):
        raise ValueError("no folder")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("installed", [True, False])
def test_nothing_is_written_where_nothing_shall_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: bool
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    with Progress("requests", 3, shown=False) as bar:
        bar.advance()
        bar.say("a word")
    assert capsys.readouterr() == ("", "")
