"""The options of the verbs in tasks.py: no letters, and what their help texts say."""

from __future__ import annotations

import pytest
from invoke.loader import FilesystemLoader
from invoke.parser.context import ParserContext
from invoke.tasks import Task

from build.cache import REPOSITORY

MODULE, _ = FilesystemLoader(start=str(REPOSITORY)).load("tasks")
VERBS = {name: verb for name, verb in vars(MODULE).items() if isinstance(verb, Task)}


def test_no_option_has_a_letter() -> None:
    """`clean -h` once meant `clean --host`: letters are given by order, and change meaning from verb to verb."""
    assert len(VERBS) > 5
    for name, verb in VERBS.items():
        short = [flag for flag in ParserContext(args=verb.get_arguments()).flags if len(flag) == 2]
        assert short == [], name


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_option_is_explained(name: str) -> None:
    explained = {argument.name: argument.help for argument in VERBS[name].get_arguments()}
    assert explained and all(explained.values())
