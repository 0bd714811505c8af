"""The interpreter's processes: a crash or a hang is laid to the case that it hit, and the others are told apart."""

from __future__ import annotations

import json
import queue
import sys
import time
from pathlib import Path

import pytest

from tests.ops.interpreter import Interpreter

BEGIN = """
import json, os, signal, sys, time
def begun(name): print(json.dumps({"begun": name}), flush=True)
def ended(name, *problems):
    factory, _, case = name.partition("/")
    print(json.dumps({"factory": factory, "case": case, "problems": problems}), flush=True)
assert os.environ["TRITON_INTERPRET"] == "1"
begun("k/one"); ended("k/one"); begun("k/two")
"""


def _program(folder: Path, rest: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(BEGIN + rest)
    return [sys.executable, str(path)]


def _results(folder: Path, rest: str) -> dict[str, list[str]]:
    interpreter = Interpreter(["family"], quiet_s=60.0, command=_program(folder, rest))
    try:
        return interpreter.results("family")
    finally:
        interpreter.close()


def test_results_by_case(tmp_path: Path) -> None:
    found = _results(tmp_path, 'ended("k/two", "y is off"); sys.exit(1)')
    assert found == {"k/one": [], "k/two": ["y is off"]}


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "family: the interpreter's process ended by SIGSEGV, in k/two"),
        ("print('no memory', file=sys.stderr); sys.exit(4)", "ended with exit code 4, in k/two\nno memory"),
        ("pass", "the interpreter's process stopped, in k/two"),
        ("time.sleep(600)", "was ended: it said nothing for 60 s, in k/two"),
    ],
)
def test_a_process_that_ends_in_a_case_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str, text: str
) -> None:
    class Lines(queue.Queue[str | None]):
        """The time of quiet passes sooner, but not before the case has begun, however long that has taken."""

        hangs = False

        def get(self, block: bool = True, timeout: float | None = None) -> str | None:
            line = super().get(block, 0.5 if self.hangs else timeout)
            self.hangs = "sleep" in rest and line is not None and '{"begun": "k/two"}' in line
            return line

    monkeypatch.setattr(queue, "Queue", Lines)
    found = _results(tmp_path, rest)
    assert found["k/one"] == [] and text in found["k/two"][0]
    assert found["k/three"] == ["not run: the process of its family ended in k/two"]


def test_a_process_that_ends_between_cases_fails_them_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with exit code 4, in k/two"):
        _results(tmp_path, 'ended("k/two"); sys.exit(4)')


def test_families_that_nobody_asked_for_ahead_are_run_too(tmp_path: Path) -> None:
    interpreter = Interpreter([], command=_program(tmp_path, 'ended("k/two")'))
    assert json.dumps(interpreter.results("other")) == '{"k/one": [], "k/two": []}'
    interpreter.close()


def test_closing_ends_what_runs(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    rest = f"open({str(begun)!r}, 'w').close(); time.sleep(600)"
    interpreter = Interpreter(["family"], command=_program(tmp_path, rest))
    while not begun.exists():
        time.sleep(0.05)
    interpreter.close()
    assert "SIGKILL" in interpreter.results("family")["k/two"][0]
