"""The options of the verbs in tasks.py: no letters, and each explained."""

from __future__ import annotations

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
