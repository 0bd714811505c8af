"""What `./run`'s command line asks for."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.errors import UsageError
from build.setup.request import parse

BUILD, TORCH, ALL = ("build",), ("build", "test"), ("build", "test", "engine")


@pytest.mark.parametrize(
    ("line", "sets", "docker"),
    [
        ("build --image flagtree", BUILD, True),
        ("build", BUILD, True),
        ("build --image '*'", BUILD, True),
        ("build --image host", TORCH, False),
        ("build --image=host", TORCH, False),
        ("build --jobs 1 --image host", TORCH, False),
        ("build --image cpu,host", TORCH, True),
        ("build --image host --help", BUILD, False),
        ("check --image host --gpus 2", TORCH, False),
        ("check --image cpu", BUILD, True),
        ("inspect", BUILD, True),
        ("publish --image cpu", BUILD, True),
        ("plan --image host", BUILD, False),
        ("doctor", BUILD, False),
        ("clean --image '*'", BUILD, False),
        ("test", ALL, False),
        ("test --help", BUILD, False),
        ("test -- -k host", ALL, False),
        ("-- python --version", ALL, False),
        ("--no-setup build --image host", TORCH, False),
    ],
)
def test_what_has_to_be_there(line: str, sets: tuple[str, ...], docker: bool) -> None:
    request = parse(shlex.split(line))
    assert (request.sets, request.needs_docker) == (sets, docker)


def test_help_is_help_for_every_verb_and_wins_over_what_else_is_there() -> None:
    for words in (["clean", "-h"], ["clean", "--host", "-h"], ["verify", "--help"], ["build", "--help", "--", "x"]):
        request = parse(words)
        assert request.asks_help and request.invoke_arguments() == ["--help", words[0]]
    assert not parse(["test", "--", "-h"]).asks_help


def test_a_compiler_is_wanted_where_the_host_is_built() -> None:
    assert parse(["build", "--image", "cpu,host"]).builds_host
    for line in ("build", "build --image h*", "build --image host -h", "check --image host", "plan --image host"):
        assert not parse(line.split()).builds_host, line


def test_only_a_plain_test_runs_the_images() -> None:
    assert parse(["test"]).runs_image_tests and parse(["test", "--keep"]).runs_image_tests
    assert not parse(["test", "--", "-q"]).runs_image_tests and not parse(["test", "--help"]).runs_image_tests


def test_own_options_stand_before_the_verb() -> None:
    request = parse(["--no-setup", "--offline", "packs", "build", "--no-setup"])
    assert not request.may_install and request.offline == Path("packs").absolute()
    assert (request.verb, request.arguments) == ("build", ("--no-setup",))
    assert parse(["build", "--no-setup"]).may_install


def test_offline_is_also_read_after_the_verb_but_not_in_a_command() -> None:
    assert parse(["build", "--image", "host", "--offline=/packs"]).offline == Path("/packs")
    assert parse(["build", "--offline", "/packs"]).offline == Path("/packs")
    assert parse(["--", "tool", "--offline", "/packs"]).offline is None
    assert parse(["test", "--", "--offline", "/packs"]).offline is None


@pytest.mark.parametrize(
    "line",
    ["--setup build", "--", "-x", "--offline", "--offline ~nobody-at-all/x plan", "build --offline=~nobody-at-all/x"],
)
def test_nonsense_is_a_usage_error(line: str) -> None:
    with pytest.raises(UsageError) as told:
        parse(line.split())
    assert told.value.exit_code == 1


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")), min_size=1))
def test_words_after_the_dashes_survive_being_joined(words: list[str]) -> None:
    given_words = parse(["test", "--", *words]).invoke_arguments()
    assert given_words[:2] == ["test", "--"]
    assert shlex.split(" ".join(given_words[2:])) == words
