"""The options of the verbs in tasks.py: no letters, and each explained."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from invoke.loader import FilesystemLoader
from invoke.parser.context import ParserContext
from invoke.tasks import Task

from build.cache import REPOSITORY

MODULE, _ = FilesystemLoader(start=str(REPOSITORY)).load("tasks")
# Asked once: a task forgets its help texts when it is asked for its arguments.
VERBS = {name: verb.get_arguments() for name, verb in vars(MODULE).items() if isinstance(verb, Task)}


@pytest.mark.parametrize("name", sorted(VERBS))
def test_no_option_has_a_letter_and_each_is_explained(name: str) -> None:
    """`clean -h` once meant `clean --host`: letters are given by order, and change meaning from verb to verb."""
    assert VERBS[name] and all(argument.help for argument in VERBS[name])
    assert [flag for flag in ParserContext(args=VERBS[name]).flags if not flag.startswith("--")] == []


def test_a_plan_is_told_on_a_terminal_that_knows_only_ascii() -> None:
    program = str(REPOSITORY / "build/setup/program.py")
    argv = [sys.executable, "-P", program, "alone", "--search-root", str(REPOSITORY), "plan"]
    told = {}
    for encoding in ("utf-8", "ascii"):
        variables = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(argv, env=variables, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        told[encoding] = done.stdout
    assert not told["utf-8"].isascii(), "else this says nothing"
    assert told["ascii"] == "".join(letter if letter.isascii() else "?" for letter in told["utf-8"])


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--dry"], 1, "build has no option --dry"),
        (["--imgae", "cpu"], 1, "did you mean '--image'?"),
        (["--image", "cpu"], 4, "unix:///nonexistent/docker.sock"),
    ],
)
def test_the_engine_is_asked_for_once_the_options_are_right(words: list[str], code: int, text: str) -> None:
    """A mistyped option once started Docker's engine. The one named here can be neither reached nor started."""
    program = str(REPOSITORY / "build/setup/program.py")
    argv = [sys.executable, "-P", program, "with-engine", "--search-root", str(REPOSITORY), "build", *words]
    variables = {**os.environ, "DOCKER_HOST": "unix:///nonexistent/docker.sock", "DEEPINFER_SETUP": "1"}
    done = subprocess.run(argv, env=variables, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr
