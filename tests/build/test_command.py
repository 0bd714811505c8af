"""Options read from strings, and failures told in plain words with their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from docker.errors import APIError
from invoke.exceptions import Exit
from requests import Response
from requests.exceptions import ReadTimeout

from build.cache import REPOSITORY
from build.call import CallFailed, call
from build.command import as_build_error, folder, one_of, told_plainly, whole_number
from build.errors import CellFailed, EnvironmentCannot, MatrixError, UsageError


def ended(problem: BaseException) -> int:
    """The exit code that a verb ends with after this failure."""
    with pytest.raises(Exit) as ending, told_plainly():
        raise problem
    return ending.value.code


def test_an_error_is_told_whole_and_on_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "c.log"
    assert ended(CellFailed("it broke", cause="a typo", next_step="mend it", log=log)) == 6
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: it broke\n  likely cause: a typo\n  log: {log}\n  next step: mend it\n"


def test_what_a_program_said_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CallFailed) as failed:
        call("sh", "-c", "echo first; echo last >&2; exit 3")
    capsys.readouterr()
    assert ended(failed.value) == 4
    err = capsys.readouterr().err
    assert "sh -c 'echo first; echo last >&2; exit 3' ended with status 3" in err
    assert "    last" in err and "next step: " in err
    assert "it said nothing" in str(as_build_error(CallFailed(["true"], 1, "", None)))


def test_the_systems_refusal_names_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused:
        (tmp_path / "absent" / "file").write_text("")
    assert ended(refused.value) == 4
    err = capsys.readouterr().err
    assert f"error: No such file or directory ({tmp_path}/absent/file)" in err and "./run doctor" in err


def test_ctrl_c_says_that_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(KeyboardInterrupt()) == 130
    assert "a rerun does the rest" in capsys.readouterr().err


def test_sigterm_unwinds_as_ctrl_c_does(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    unwound = []
    with pytest.raises(Exit) as ending, told_plainly():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        finally:
            unwound.append(True)
    assert ending.value.code == 143 and unwound and "a rerun does the rest" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("failure", [APIError("removal in progress"), ReadTimeout("it hangs")])
def test_a_refusal_of_the_engine_is_told(capsys: pytest.CaptureFixture[str], failure: Exception) -> None:
    assert ended(failure) == 4
    err = capsys.readouterr().err
    assert str(failure) in err and "Docker engine" in err and "next step: " in err


@pytest.mark.parametrize(
    ("status", "words", "removed"),
    [
        (409, "can not get logs from container which is dead or marked for removal", True),
        (404, "No such container: 0123", True),
        (404, "No such image: deepinfer:cpu", False),
        (409, "conflict: unable to remove repository reference", False),
    ],
)
def test_a_container_that_somebody_removed_is_told_as_that(status: int, words: str, removed: bool) -> None:
    answer = Response()
    answer.status_code = status
    told = as_build_error(APIError("the engine's answer", response=answer, explanation=words))
    assert told.exit_code == 4 and words in told.what
    assert told.what.startswith("something removed a container") == removed


def test_output_that_nobody_reads_any_more_ends_quietly() -> None:
    program = (
        "import sys\nfrom build.command import told_plainly\nfrom invoke.exceptions import Exit\n"
        "sys.stdin.read()\ntry:\n    with told_plainly():\n        print('x', flush=True)\n"
        "except Exit as ending:\n    sys.exit(ending.code)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    assert process.wait(timeout=60) == 141 and process.stderr.read() == ""
    process.stderr.close()
    assert ended(BrokenPipeError(32, "Broken pipe", "/some/socket")) == 4, "another pipe is a failure like any other"


def test_a_mistake_of_the_program_itself_is_not_disguised() -> None:
    with pytest.raises(ZeroDivisionError), told_plainly():
        raise ZeroDivisionError


@pytest.mark.parametrize(("value", "shown"), [("", False), ("0", False), ("Off", False), ("1", True), ("yes", True)])
def test_traceback_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, shown: bool
) -> None:
    monkeypatch.setenv("DEEPINFER_DEBUG", value)
    assert ended(MatrixError("wrong")) == 2
    err = capsys.readouterr().err
    assert ("Traceback" in err) == shown and err.endswith("error: wrong\n")


def test_whole_numbers() -> None:
    assert whole_number("gpus", "0", at_least=0) == 0
    assert whole_number("jobs", " 12 ", at_least=1) == 12
    for text in ("", "two", "1.5", "-1", "1e3", "0x2"):
        with pytest.raises(UsageError, match="--gpus"):
            whole_number("gpus", text, at_least=0)
    with pytest.raises(UsageError, match="at least 1"):
        whole_number("jobs", "0", at_least=1)


def test_a_word_of_a_fixed_set() -> None:
    assert one_of("base", "auto", ("auto", "vendor")) == "auto"
    with pytest.raises(UsageError) as wrong:
        one_of("base", "AUTO", ("auto", "vendor"))
    assert wrong.value.exit_code == 1 and wrong.value.next_step == "use one of: auto, vendor"


def test_folders_are_absolute_without_dots_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder("prefix", "") is None
    assert folder("prefix", "../new place") == tmp_path / "new place"
    assert folder("prefix", "~/link/x") == tmp_path / "real" / "x"
    for text in ("~no-such-user/x", "nul\0byte"):
        with pytest.raises(UsageError, match="--prefix"):
            folder("prefix", text)


def test_a_file_that_is_nested_too_deeply_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecursionError) as deep:
        json.loads("[" * 100_000)
    assert ended(deep.value) == 4 and "nested too deeply" in capsys.readouterr().err


def test_an_error_without_a_word_of_the_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(as_build_error(OSError("the engine went away")), EnvironmentCannot)
    assert ended(OSError("the engine went away")) == 4
    assert "error: the engine went away\n" in capsys.readouterr().err
