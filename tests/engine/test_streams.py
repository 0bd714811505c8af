"""Commands whose standard streams are closed, full, or have no reader."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer import LLM, cli, streams

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from deepinfer.command_line import exit_code
from deepinfer.cli.progress import Progress
from deepinfer.errors import DeepInferError

def work():
    opened = open(sys.argv[1], "w")
    print("a note", file=sys.stderr)
    with Progress("requests", 2) as bar:
        bar.advance()
        bar.say("a word")
        bar.advance()
    if sys.argv[2:]:
        raise DeepInferError("it failed")
    print("the answer")
    assert opened.fileno() > 2
    return 0

sys.exit(exit_code(work))
"""


def run(redirections: str, file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", PROGRAM, str(file), *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full", "0<&- 2>&-"])
def test_without_stderr_the_answer_comes_and_the_exit_code_is_the_works(redirections: str, tmp_path: Path) -> None:
    done = run(redirections, tmp_path / "opened")
    assert (done.returncode, done.stdout) == (0, "the answer\n")
    failed = run(redirections, tmp_path / "opened", "fail")
    assert (failed.returncode, failed.stdout) == (4, "")


def test_a_closed_stdout_is_told(tmp_path: Path) -> None:
    done = run(">&-", tmp_path / "opened")
    assert done.returncode == 1
    assert "a note\n" in done.stderr and "error: stdout is closed, and the output goes there\n" in done.stderr
    assert (tmp_path / "opened").read_bytes() == b""


@pytest.mark.parametrize(
    ("ending", "code", "said"), [("DeepInferError", 4, "error: bad\n"), ("KeyboardInterrupt", 130, "bad\n")]
)
def test_what_stdout_does_not_take_hides_no_other_error(ending: str, code: int, said: str) -> None:
    program = "import sys; from deepinfer.command_line import exit_code; from deepinfer.errors import DeepInferError\n"
    program += f"def work():\n    print('half of it')\n    raise {ending}('bad')\nsys.exit(exit_code(work))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, said)


def test_stderr_without_a_reader_does_not_end_the_work() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with _as_stderr(writing):
        os.close(writing)
        stream = streams._Stderr()
        assert stream.write(b"lost") == 4 and stream.fileno() == 2


@contextlib.contextmanager
def _as_stderr(descriptor: int) -> Iterator[None]:
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@pytest.mark.parametrize("verb", ["ask", "generate", "bench latency", "generate --output o --json"])
def test_a_closed_stdout_is_told_before_a_model_is_opened(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr("deepinfer.engine.llm.LLM", None)
    words = ["fox"] if verb == "ask" else []
    assert cli.main([*verb.split(), "--model", "nowhere", *words]) == 1
    assert "stdout is closed" in capsys.readouterr().err


def test_results_in_a_file_need_no_stdout(tiny_llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").write_text('"fox"\n')
    files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    monkeypatch.setattr(sys, "stdout", None)
    options = ["--device", "cpu", "--max-tokens", "2", "--quiet"]
    assert cli.main(["generate", "--model", str(tiny_llm.folder), *files, *options]) == 0
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 1


def test_stdout_takes_the_name_of_any_file() -> None:
    code = "from deepinfer.command_line import exit_code; exit_code(lambda: print('m\\udcff') or 0); print('m\\udcff')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        check=False,
    )
    assert done.stdout == b"m\\udcff\n" and b"surrogates not allowed" in done.stderr, "a caller's own stays as it was"
