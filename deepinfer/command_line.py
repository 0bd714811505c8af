"""What the engine's command lines share: usage errors exit 1, failures are told in words, never by a traceback."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from deepinfer import envs, interrupts, packages, streams
from deepinfer.errors import DeepInferError, Option, UsageError, VariableError, shown

_WORDS = ("FILE", "DIR", "TEXT", "NAME")
"""What an option takes (its metavar) that somebody may give without the option."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Parser(argparse.ArgumentParser):
    """argparse exits 2 on a usage error; here that is 1, as everywhere in the project.

    An option that is not there is named, with the one that is nearest, and before what is missing: who writes
    `--modle DIR` lacks no --model, but wrote it wrong. A word that nothing takes is named with the options that may
    have been meant: who writes `generate in.jsonl` has left out --input.
    """

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """As argparse has it, but what is unknown is an error here, where it is a sub-command that knows its options.

        Raises:
            UsageError: the words do not make sense.
        """
        self._words = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(self._words, namespace)
        if words := [word for word in unknown if word != "--"]:
            self._refuse_words(found, words)
        return found, []

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse has it, but a reader or a disk that does not take it is not passed over."""
        print(message, end="", file=file or sys.stderr, flush=True)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        # What is wrong with an option that is there ("argument --seed: …") says enough by itself.
        # "argument -h/--help: ignored explicit argument 'ello'" does not: -hello is no option.
        told = message.startswith("argument ") and "ignored explicit argument" not in message
        option = "" if told else self._unknown_option()
        if not option:
            raise UsageError(message, next_step=f"{self.prog} --help")
        near = difflib.get_close_matches(option, self._option_string_actions, n=1)
        what = f"{self.prog} has no option {option!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        step = f"{self.prog} --help lists what there is"
        if (not near or not option.startswith("--")) and self._get_positional_actions():
            step += "; before a word that is no option and begins with - put --"
        raise UsageError(what, next_step=step)

    def _refuse_words(self, found: argparse.Namespace, words: list[str]) -> NoReturn:
        """Raise UsageError for words that nothing takes. found: what the others gave."""
        if self._unknown_option():
            self.error(f"unrecognized arguments: {' '.join(words)}")
        others = f", and {len(words) - 1} more" if len(words) > 1 else ""
        further = bool(self._get_positional_actions())
        what = f"{self.prog} takes no {'further word' if further else 'word by itself'}: {shown(words[0])}{others}"
        meant = [
            f"{action.option_strings[-1]} {action.metavar}"
            for action in self._get_optional_actions()
            if str(action.metavar).startswith(_WORDS) and action.nargs is None
            # What was given already is not what was left out, and what may be repeated is seldom forgotten.
            and getattr(found, action.dest, None) == action.default and not isinstance(action, argparse._AppendAction)
        ]  # fmt: skip
        hints = ["one with spaces in it needs quotes"] if further else []
        hints += [f"give it with {' or '.join(meant)}"] if meant else []
        raise UsageError(what, next_step="; ".join([*hints, f"{self.prog} --help lists what there is"]))

    def _unknown_option(self) -> str:
        """The first word that argparse takes for an option, and that is none, nor the beginning of one."""
        known = set(self._option_string_actions)
        for action in self._get_positional_actions():
            if isinstance(action.choices, dict):  # sub-commands, by name
                known.update(*(command._option_string_actions for command in action.choices.values()))
        for word in self._words:
            name = word.partition("=")[0]
            if word == "--":
                return ""
            if not word.startswith("-") or word == "-" or " " in word or self._negative_number_matcher.match(word):
                continue
            if not any(option.startswith(name) for option in known):
                return name
        return ""


def exit_code(work: Callable[[], int]) -> int:
    """What `work` returns, or what its failure means, which is told on stderr.

    A KeyboardInterrupt's own text, "stopped" by default, is told too: what became of the work, whether it can go on.
    """
    with streams.standard():
        try:
            with interrupts.work(), _plain_warnings():
                return _told(work)
        except KeyboardInterrupt as problem:
            print(str(problem) or "stopped", file=sys.stderr, flush=True)
            return interrupts.code()
        finally:
            _forget_stdout()


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings are told as notes: who runs a command has no use for the file and the line that warned."""

    def plain(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = ""
    ) -> str:
        return f"note: {message}\n"

    before = warnings.formatwarning
    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = before


def _told(work: Callable[[], int]) -> int:
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone
        return 0
    except DeepInferError as problem:
        _tell(problem.told(flag))
        return problem.exit_code
    except ImportError as problem:
        missing = packages.told(problem)
        if missing is None:
            return _fault(problem)
        _tell(str(missing))
        return missing.exit_code
    except OSError as problem:
        if problem.errno not in _NO_ROOM:
            return _fault(problem)
        _tell(str(_no_room(problem)))
        return _no_room(problem).exit_code
    except Exception as problem:
        return _fault(problem)


def flag(option: Option) -> str:
    """An option of the engine as it is typed."""
    return f"--{option.replace('_', '-')}"


def _no_room(problem: OSError) -> DeepInferError:
    """The error of a file system that takes no more."""
    named = f" ({problem.filename})" if problem.filename else ""
    return DeepInferError(
        f"the output cannot be written: {problem.strerror}{named}",
        cause="the file system is full, or a quota is reached",
        next_step="make room and run the same command again",
    )


def _forget_stdout() -> None:
    """Let what stdout holds and does not take go nowhere: whoever flushes it later, at exit too, must not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fault(problem: Exception) -> int:
    """Still in words, and DEEPINFER_DEBUG=1 shows where."""
    _tell(f"stopped by {type(problem).__name__}: {problem}\n  next step: DEEPINFER_DEBUG=1 shows where")
    return 4


def _tell(message: str) -> None:
    try:
        debug = envs.DEBUG.get()
    except VariableError:
        debug = False
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr, flush=True)
