"""What long steps say while they go on, and in how many characters."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from build import cache
from build.call import call
from build.heartbeat import activity, heartbeat, last_line, shortened


@pytest.mark.parametrize(
    ("line", "short"),
    [
        (
            f"[1/5] ccache c++ -MMD -MF /root/.cache/{'x' * 99}/block.o.d -c /src/block.cpp -o block.o",
            "[1/5] block.cpp",
        ),
        (f"nvcc -I{'y' * 60} kernels.cu -o kernels.o", "kernels.cu"),
        ("#7 DONE 0.3s", "#7 DONE 0.3s"),
        ("cc a.c", "cc a.c"),
        ("", ""),
    ],
)
def test_a_compile_is_its_source(line: str, short: str) -> None:
    assert activity(line) == short


def test_a_long_line_is_cut_between_words() -> None:
    assert shortened("word " * 40).endswith("word …")
    assert shortened("docker build --tag " + "x" * 200) == "docker build --tag " + "x" * 81 + "…"
    assert shortened("x" * 200) == "x" * 100 + "…"


def test_what_goes_on_says_so_with_the_end_of_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text("first\nsecond\n\n")
    told = ""
    with heartbeat("docker build", log=log, every=0.01):
        while "second" not in told:
            time.sleep(0.01)
            told += capsys.readouterr().err
    assert re.match(r"docker build: \d+ s, second\n", told)
    assert last_line(tmp_path / "none") == ""
    (tmp_path / "gcc").write_text("a.cpp:3:1: warning: unused\n    3 | int x;\n      |     ^\n")
    assert last_line(tmp_path / "gcc") == "a.cpp:3:1: warning: unused"


def test_a_long_command_is_shown_in_short_and_whole_in_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [sys.executable, "-c", "print('done')", *(f"--build-arg=NUMBER{number}=1" for number in range(40))]
    call(*words, log=tmp_path / "log")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"… (log: {tmp_path / 'log'})") and "NUMBER39" not in line
    assert "NUMBER39" in (tmp_path / "log").read_text()
    call(*words)
    assert "NUMBER39" in capsys.readouterr().err


def test_a_free_lock_is_taken_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPINFER_BUILD_CACHE", str(tmp_path / "cache"))
    with cache.locked("image-x", waiting_for="build of x"):
        pass
    assert capsys.readouterr().err == ""
