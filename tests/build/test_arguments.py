"""Options of the build system's lesser programs: usage exits 1, and the nearest option is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from build import relock
from build.arguments import Parser
from build.cache import REPOSITORY
from build.errors import UsageError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--wrod", "x"], "prog has no option '--wrod'; did you mean '--word'?"),
        (["a", "--wrod=x", "-q"], "prog has no option '--wrod'; did you mean '--word'?"),
        (["--xyz"], "prog has no option '--xyz'\n"),
        (["a", "b"], "unrecognized arguments: b"),
        (["--word"], "argument --word: expected one argument"),
    ],
)
def test_mistakes_are_told_with_what_is_near(words: list[str], said: str) -> None:
    parser = Parser(prog="prog")
    parser.add_argument("--word")
    parser.add_argument("place", nargs="?")
    with pytest.raises(UsageError) as told:
        parser.parse_args(words)
    assert said in str(told.value) and "next step: prog --help" in str(told.value)


def test_options_of_a_sub_command_are_near_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert relock.main(["relock", "x.in", "--python", "3.13", "--pyhton", "3"]) == 1
    assert "has no option '--pyhton'; did you mean '--python'?" in capsys.readouterr().err


def test_a_list_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert relock.main(["relock", "/nonexistent/x.in", "--python", "3.13"]) == 4
    assert "error: No such file or directory (/nonexistent/x.in)" in capsys.readouterr().err


def test_the_gpu_stage_alone_says_it_too() -> None:
    argv = [sys.executable, "-m", "build.gpu"]
    for words, said in (
        (["--gpsu", "2"], "did you mean '--gpus'?"),
        (["--gpus", "0"], "--gpus needs at least 1"),
        (["--triton", "/x"], "holds no single"),
    ):
        done = subprocess.run([*argv, *words], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (1, "") and said in done.stderr
