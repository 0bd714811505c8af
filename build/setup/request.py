"""What the command line of `./run` asks for, and what has to be there before it can go."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from build.errors import UsageError

USAGE = """\
usage: ./run [--no-setup] [--offline DIR] VERB [OPTIONS]     `./run VERB --help` shows the options, with an example
       ./run [--no-setup] [--offline DIR] -- COMMAND [ARGS]  run a command in the project's environment
       ./run test [-- PYTEST ARGS]

  --no-setup     install and start nothing; say what to type instead (exit code 4)
  --offline DIR  with DEEPINFER_PYTHON: the folder of packs that holds wheels/*.whl
"""
TARGET_VERBS = ("build", "inspect", "check")
"""Verbs that work on the images that `--image` selects, the host among them."""


@dataclass(frozen=True)
class Request:
    """A command line: the verb ("" for help, "--" for a command of the user's) and what follows it."""

    verb: str
    arguments: tuple[str, ...] = ()
    may_install: bool = True
    offline: Path | None = None
    offline_first: bool = False
    """Whether `--offline` stood before the verb, where it is `./run`'s own."""

    @property
    def asks_help(self) -> bool:
        """Whether the verb is only asked what it does."""
        own, _ = self._split()
        return "--help" in own or "-h" in own

    @property
    def image_pattern(self) -> str:
        """The verb's `--image`, which stands for everything when it is not there."""
        return _option(self._split()[0], "--image") or "*"

    @property
    def sets(self) -> tuple[str, ...]:
        """The locked sets that the request needs in `.venv`, in install order; "engine" is DeepInfer itself."""
        if self.verb == "--" or (self.verb == "test" and not self.asks_help):
            return ("build", "test", "engine")
        # A glob means images: the host is worked on only where it is named, and then with the torch of `.venv`.
        uses_torch = self.verb in TARGET_VERBS and not self.asks_help and "host" in _parts(self.image_pattern)
        return ("build", "test") if uses_torch else ("build",)

    @property
    def builds_host(self) -> bool:
        """Whether something is compiled on this machine, outside of containers."""
        return self.verb == "build" and not self.asks_help and "host" in _parts(self.image_pattern)

    @property
    def needs_docker(self) -> bool:
        """Whether an engine has to answer before the verb starts (`test` starts and stops its own)."""
        if self.asks_help:
            return False
        if self.verb in TARGET_VERBS:
            return _parts(self.image_pattern) != ["host"]
        return self.verb == "publish"

    @property
    def runs_image_tests(self) -> bool:
        """Whether this is `test` with its Docker stages."""
        return self.verb == "test" and not self.asks_help and "--" not in self.arguments

    def invoke_arguments(self) -> list[str]:
        """What invoke gets. It joins all after `--` with spaces: the words are quoted, for tasks to take apart."""
        if self.asks_help:  # said first: after a verb that needs a word, invoke would take `--help` for that word
            return ["--help", self.verb]
        own, rest = self._split()
        return [self.verb, *own, *(["--", *map(shlex.quote, rest)] if rest else [])]

    def _split(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if "--" not in self.arguments:
            return self.arguments, ()
        at = self.arguments.index("--")
        return self.arguments[:at], self.arguments[at + 1 :]


def parse(argv: Sequence[str]) -> Request:
    """Read `./run`'s own options up to the verb; what follows is the verb's.

    Raises:
        UsageError: an unknown option before the verb, `--` without a command, or no folder after `--offline`.
    """
    words = list(argv)
    may_install, offline = True, None
    while words and words[0].startswith("-") and words[0] not in ("--", "-h", "--help"):
        word = words.pop(0)
        if word == "--no-setup":
            may_install = False
        elif word == "--offline" and words:
            offline = words.pop(0)
        elif word.startswith("--offline="):
            offline = word.partition("=")[2]
        elif word == "--offline":
            raise UsageError("--offline needs a folder after it", next_step="./run --offline DIR VERB")
        else:
            raise UsageError(f"./run does not know the option {word}", next_step="`./run --help` lists what it knows")
    verb = words.pop(0) if words else ""
    if verb in ("-h", "--help"):
        verb = ""
    if verb == "--" and not words:
        raise UsageError("`./run --` needs a command after it", next_step="for example: ./run -- python --version")
    found = offline or ("" if verb in ("", "--") else _option(words, "--offline"))
    return Request(verb, tuple(words), may_install, _folder(found), offline_first=offline is not None)


def _folder(text: str) -> Path | None:
    try:
        return Path(text).expanduser().absolute() if text else None
    except RuntimeError as problem:  # ~ of a user who does not exist
        raise UsageError(f"--offline {text!r} cannot be the name of a folder: {problem}") from problem


def asks_json(words: Sequence[str]) -> bool:
    """Whether a command line wants JSON on stdout, and so of an error too. It need not make sense otherwise."""
    own = list(words)[: words.index("--")] if "--" in words else list(words)
    return "--json" in own or _option(own, "--format") == "json"


def _option(words: Sequence[str], *names: str) -> str:
    value = ""
    for index, word in enumerate(words):
        if word == "--":
            break
        name, equals, inline = word.partition("=")
        if name in names:
            value = inline if equals else (words[index + 1] if index + 1 < len(words) else "")
    return value


def _parts(pattern: str) -> list[str]:
    return [part.strip() for part in pattern.split(",") if part.strip()]
