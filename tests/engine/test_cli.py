"""The `deepinfer` command: its verbs, its errors, its exit codes."""

from __future__ import annotations

import argparse
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import deepinfer
from deepinfer import cli
from deepinfer.errors import DeepInferError

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_help_lists_the_verbs_and_imports_none(run_python: Run) -> None:
    code = "import sys; from deepinfer import cli; cli.main(['--help']); print([m for m in sys.modules if m.startswith("
    done = run_python("-c", f"{code}'deepinfer.cli.')])")
    assert done.stdout.endswith("[]\n"), done.stderr
    assert all(f"\n  {verb.name} " in done.stdout for verb in cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help(verb: cli.Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb.name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"deepinfer {verb.name}" in text
    assert "--json" in text or verb.name == "tiny", "a verb that reports facts reports them as JSON too"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"deepinfer {deepinfer.__version__}\n"
    assert f'version = "{deepinfer.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "no verb"), (["prob"], "did you mean `deepinfer probe`?"), (["xyzzy"], "--help lists the verbs"),
     (["--jsn"], "deepinfer has no option '--jsn'"), (["env", "--jsn"], "deepinfer env --help"),
     (["ask", "--modle", "m", "fox"], "deepinfer ask has no option '--modle'; did you mean '--model'?"),
     (["ask", "--model", "m", "--max-tokns=4", "fox"], "did you mean '--max-tokens'?"),
     (["ask", "--model", "m", "-fox"], "has no option '-fox'\n"), (["ask", "--model", "m", "-fox"], "put --"),
     (["ask", "--model", "m", "-hello"], "has no option '-hello'"), (["ask", "--model", "m", "-hello"], "put --"),
     (["ask", "--model", "m", "--json=5"], "argument --json: ignored explicit argument '5'"),
     (["ask", "fox", "--", "--modle"], "are required: --model"), (["ask", "--max-tokens"], "expected one argument"),
     (["generate", "--model", "m", "--ouput", "o"], "did you mean '--output'?"),
     (["tiny", "--sede", "3"], "did you mean '--seed'?"), (["tiny"], "are required: DIR"),
     (["bench", "latency", "--modle", "m"], "deepinfer bench latency has no option '--modle'; did you mean '--model'"),
     (["bench", "latency", "--model", "m", "--iteration", "2", "--jsn"], "bench latency has no option '--jsn'"),
     (["bench", "--model=m"], "are required: latency|throughput"),
     (["env", "--timeout", "-1"], "number of seconds above 0"), (["env", "--timeout", "nan"], "above 0"),
     (["env", "extra"], "deepinfer env takes no word by itself: 'extra'"), (["env", "extra"], "step: deepinfer env -"),
     (["generate", "--model", "m", "in.jsonl"], "deepinfer generate takes no word by itself: 'in.jsonl'"),
     (["generate", "--model", "m", "in.jsonl"], "give it with --input FILE or --output FILE; deepinfer generate"),
     (["generate", "--model", "m", "--", "-1", "b", "c"], "by itself: '-1', and 2 more"),
     (["generate", "--model", "m", "--input", "i", "out.jsonl"], "step: give it with --output FILE; "),
     (["bench", "latency", "--model", "m", "8"], "deepinfer bench latency takes no word by itself: '8'"),
     (["bench", "latency", "--model", "m", "8"], "step: deepinfer bench latency --help"),
     (["warm", "paged"], "give it with --only NAME[,NAME...]; deepinfer warm --help"),
     (["tiny", "a", "model"], "deepinfer tiny takes no further word: 'model'"),
     (["tiny", "a", "model"], "one with spaces in it needs quotes; deepinfer tiny --help"),
     (["ask", "fox", "--model", "m", "dog"], "deepinfer ask takes no further word: 'dog'")],
)  # fmt: skip
def test_usage_errors_exit_1(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 1
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.startswith("error: ") and said in seen.err and "next step: " in seen.err


def test_a_sign_that_options_end_is_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--model", "m", "--input", "/nowhere/in.jsonl", "--"]) == 2
    assert "/nowhere/in.jsonl cannot be read" in capsys.readouterr().err


def _verb(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    module = types.ModuleType("deepinfer_test_verb")
    module.__dict__.update(HELP="a verb", add_arguments=lambda parser: None, run=run)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "VERBS", (cli.Verb("try", module.__name__, "a verb"),))


def _raise(problem: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise problem

    return run


def test_an_error_says_what_why_and_what_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _verb(monkeypatch, _raise(DeepInferError("it broke", cause="rust", next_step="oil it")))
    assert cli.main(["try"]) == 4
    assert capsys.readouterr().err == "error: it broke\n  likely cause: rust\n  next step: oil it\n"


def test_an_unexpected_error_is_no_traceback_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _verb(monkeypatch, _raise(KeyError("k")))
    assert cli.main(["try"]) == 4
    assert capsys.readouterr().err == "error: stopped by KeyError: 'k'\n  next step: DEEPINFER_DEBUG=1 shows where\n"
    monkeypatch.setenv("DEEPINFER_DEBUG", "1")
    assert cli.main(["try"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _verb(monkeypatch, _raise(KeyboardInterrupt()))
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_warning_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def run(_: argparse.Namespace) -> int:
        told.append(warnings.formatwarning("it is slow here", RuntimeWarning, "file.py", 7))
        return 0

    before = warnings.formatwarning
    _verb(monkeypatch, run)
    assert cli.main(["try"]) == 0 and told == ["note: it is slow here\n"]
    assert warnings.formatwarning is before


def test_a_bad_variable_stops_a_verb_before_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _verb(monkeypatch, _raise(AssertionError("it ran")))
    monkeypatch.setenv("DEEPINFER_REQUIRE_C", "perhaps")
    assert cli.main(["try"]) == 1
    assert "DEEPINFER_REQUIRE_C='perhaps' is not allowed" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(run_python: Run) -> None:
    code = (
        "import subprocess, sys;"
        "child = subprocess.Popen([sys.executable, '-m', 'deepinfer', 'env', '--json'],"
        " stdout=subprocess.PIPE, stderr=subprocess.PIPE);"
        "child.stdout.close(); print(child.stderr.read().decode(), child.wait())"
    )
    assert run_python("-c", code).stdout == " 0\n"


@pytest.mark.parametrize(("verb", "code"), [("env", 0), ("probe", 4)])
def test_without_a_temporary_folder(run_python: Run, verb: str, code: int) -> None:
    # As in a container that was started with --read-only: nothing under /tmp can be made.
    start = "import sys, tempfile; tempfile.tempdir = '/nonexistent'; from deepinfer import cli"
    done = run_python("-c", f"{start}; sys.exit(cli.main(['{verb}']))")
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    if code:
        assert "temporary folder" in done.stderr and "--tmpfs /tmp" in done.stderr
