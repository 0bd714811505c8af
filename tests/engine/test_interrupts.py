"""Ctrl-C at chosen moments of the programs' lives: always 130 as a shell sees it, never a traceback, never ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepinfer import interrupts
from deepinfer.command_line import exit_code

ROOT = Path(__file__).resolve().parents[2]
HOOK = """
import os, sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["STOP_AT"] and (number := os.environ.pop("STOP", "")):
            os.kill(os.getpid(), int(number))


sys.meta_path.insert(0, Finder())
"""


def program(folder: Path, at: str, *command: str) -> subprocess.CompletedProcess[str]:
    """`python -m …`, interrupted when it begins to import the module `at`."""
    (folder / "sitecustomize.py").write_text(HOOK)
    (folder / "here").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "STOP_AT": at, "STOP": "2"}
    return subprocess.run(
        [sys.executable, "-m", *command],
        env=environment, cwd=folder / "here", capture_output=True, text=True, check=False,
    )  # fmt: skip


TINY = ("deepinfer", "tiny", "tiny-model")
ASK = ("deepinfer", "ask", "--model", "nowhere", "fox")
EXACTNESS = ("deepinfer.exactness", "--model", "nowhere")


@pytest.mark.parametrize(
    ("at", "command"),
    [
        ("deepinfer.activation", TINY),
        ("deepinfer.cli", TINY),
        ("torch", TINY),
        ("numpy", TINY),  # torch's C code imports it, and goes on without it where that fails
        ("numpy._core.multiarray", TINY),
        ("torch.nn", TINY),
        ("safetensors.torch", TINY),
        ("torch", ASK),
        ("torch", EXACTNESS),
        ("numpy", EXACTNESS),
        ("torch", ("deepinfer.ops.ab", "--device", "cpu", "norm_tl")),
        ("triton", ("deepinfer.ops.variants", "--help")),
        ("torch", ("benchmarks.step", "--help")),
        ("torch", ("benchmarks.ops", "--help")),
        ("torch", ("benchmarks.load", "--help")),
        ("numpy", ("benchmarks.batch", "--help")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0] + "-" + value[1].strip("-"),
)
def test_while_importing_it_ends_at_once(at: str, command: tuple[str, ...], tmp_path: Path) -> None:
    done = program(tmp_path, at, *command)
    assert done.returncode == -signal.SIGINT, (done.returncode, done.stderr)
    assert done.stdout == "" and done.stderr == "stopped\n"
    assert not any((tmp_path / "here").iterdir()), "nothing is half written"


def test_during_the_work_it_is_told_what_became_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped: half of it is there") from None
        return 0

    assert exit_code(work) == 130
    assert capsys.readouterr().err == "stopped: half of it is there\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "who only calls us keeps Python's"


def test_termination_is_taken_for_an_interrupt_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> int:
        with interrupts.termination_too():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return 0

    assert exit_code(work) == 143 and capsys.readouterr().err == "stopped\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("words", [["-m", "deepinfer_user"], ["deepinfer_user.py", "-m", "deepinfer.exactness"]])
def test_a_program_that_imports_the_package_keeps_its_handlers(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "deepinfer_user.py").write_text(
        "import signal, deepinfer\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "from deepinfer.cli import main; main(['--version'])\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, _, last = done.stdout.splitlines()
    assert first == last == "True"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_process_of_a_container_ends_by_either(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "STOP_AT": "torch", "STOP": str(int(number))}
    # Its children are the first processes of a new namespace.
    start = "import ctypes, os, subprocess, sys\nif ctypes.CDLL(None).unshare(0x20000000): sys.exit(77)\n"
    start += f"done = subprocess.run([sys.executable, '-m', *{ASK!r}], env={environment!r}, check=False)\n"
    done = subprocess.run(
        [sys.executable, "-c", start + "print(done.returncode)"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this machine lets nobody make a namespace of processes, as a container has one")
    assert (done.stdout, done.stderr) == (f"{128 + number}\n", "stopped\n")


def test_where_its_own_signal_does_not_kill_a_process_it_ends_itself() -> None:
    # The first process of a container is killed by no signal that it does not handle, its own ones included.
    code = "import os, signal; from deepinfer import interrupts; interrupts._install(); "
    code += "os.kill = lambda *_: None; interrupts._handle(signal.SIGINT, None)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 130
