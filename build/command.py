"""What every verb shares: options read from strings, errors told in plain words with their exit code."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from docker.errors import APIError, DockerException
from invoke.exceptions import Exit
from requests.exceptions import RequestException

from build.call import CallFailed
from build.errors import BuildError, EnvironmentCannot, UsageError, of_system

_OF_SIGNAL = 128
TROUBLE = (BuildError, CallFailed, DockerException, OSError, RecursionError)
"""What `as_build_error` can tell."""
Trouble = BuildError | CallFailed | DockerException | OSError | RecursionError


class Answer:
    """The one JSON document of a verb with --json: its result, or the error that it ended with."""

    def __init__(self, *, asked: bool) -> None:
        self.asked = asked
        self._given = False

    def give(self, document: Any) -> None:
        """Print the document, if JSON was asked for and nothing was given yet."""
        if self.asked and not self._given:
            self._given = True
            print(json.dumps(document, indent=2, default=str), flush=True)


@contextlib.contextmanager
def told_plainly(*, as_json: bool = False) -> Iterator[Answer]:
    """Turn failures into a message and an exit code; DEEPINFER_DEBUG=1 shows the traceback as well.

    SIGTERM ends the verb as Ctrl-C does: what it started in containers is taken along.

    Args:
        as_json: the verb prints JSON as the last thing it does, or through what is given here; a failure becomes JSON
            as well: {"error": …, "exit_code": …}, with cause, log and next_step where there are any.
    """
    answer = Answer(asked=as_json)
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield answer
    except TROUBLE as problem:
        if isinstance(problem, BrokenPipeError) and _nobody_reads():
            # Seen enough (`| head`). Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise Exit(code=_OF_SIGNAL + signal.SIGPIPE) from None
        told = told_of(problem)
        answer.give(told.to_json())
        raise Exit(code=told.exit_code) from None
    except KeyboardInterrupt:
        raise _ended("interrupted", signal.SIGINT, answer) from None
    except _Terminated:
        raise _ended("terminated", signal.SIGTERM, answer) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _ended(how: str, number: signal.Signals, answer: Answer) -> Exit:
    """Tell that a signal ended the verb."""
    print(f"{how}; what was finished is kept, a rerun does the rest", file=sys.stderr)
    answer.give({"error": how, "exit_code": _OF_SIGNAL + number})
    return Exit(code=_OF_SIGNAL + number)


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose reader has gone."""
    watched = select.poll()
    watched.register(1, 0)
    return any(events & select.POLLERR for _, events in watched.poll(0))


class _Terminated(BaseException):
    """SIGTERM arrived. Not an Exception: nothing on the way is meant to handle it."""


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise _Terminated


def as_build_error(problem: Trouble) -> BuildError:
    """The failure of a program or of the system as an error that a user can act on; a BuildError is one already."""
    if isinstance(problem, BuildError):
        return problem
    if isinstance(problem, CallFailed):
        return EnvironmentCannot(
            str(problem),
            cause=problem.tail.replace("\n", "\n    ") or "it said nothing",
            next_step="read what it said; `./run doctor` says what this machine lacks",
            log=problem.log,
        )
    if isinstance(problem, APIError) and _container_went(problem):
        return EnvironmentCannot(
            f"something removed a container while it was used: {problem.explanation or problem}",
            cause="`docker rm -f`, `docker container prune`, or a `clean` from another checkout",
            next_step="run the command again",
        )
    if isinstance(problem, DockerException | RequestException):
        return EnvironmentCannot(
            f"the Docker engine did not do what it was asked: {' '.join(str(problem).split())[:400]}",
            cause="it was stopped meanwhile, its disk is full, or somebody removed what was being used",
            next_step="run the command again; `./run doctor` says whether the engine answers and has room",
        )
    if isinstance(problem, RecursionError):
        return EnvironmentCannot(
            f"a file that was read is nested too deeply: {problem}",
            cause="it is damaged, or somebody made it to break what reads it",
            next_step="DEEPINFER_DEBUG=1 shows which; what is in the build cache can be removed, and is made again",
        )
    return of_system(problem)


def told_of(problem: Trouble) -> BuildError:
    """Tell a failure on stderr, with DEEPINFER_DEBUG=1 and its traceback; returns it as `as_build_error` does."""
    told = as_build_error(problem)
    show_traceback()
    print(told, file=sys.stderr, flush=True)
    return told


def _container_went(problem: APIError) -> bool:
    told = str(problem.explanation or problem).lower()
    if problem.status_code == 404:
        return "no such container" in told
    return problem.status_code == 409 and ("marked for removal" in told or "removal of container" in told)


def show_traceback() -> None:
    """With DEEPINFER_DEBUG=1, show where the failure that is being handled came from."""
    if os.environ.get("DEEPINFER_DEBUG", "").lower() not in ("", "0", "false", "no", "off"):
        import traceback

        traceback.print_exc()


def whole_number(flag: str, text: str, *, at_least: int) -> int:
    """Read a number given as text. Raises UsageError naming the flag: invoke would print a raw traceback."""
    try:
        value = int(text)
    except ValueError:
        value = at_least - 1
    if value < at_least:
        raise UsageError(f"--{flag} {text!r} is not a whole number of at least {at_least}")
    return value


def one_of(flag: str, text: str, allowed: tuple[str, ...]) -> str:
    """Read a word of a fixed set. Raises UsageError naming the flag and what is allowed."""
    if text not in allowed:
        raise UsageError(f"--{flag} {text!r} is unknown", next_step=f"use one of: {', '.join(allowed)}")
    return text


def folder(flag: str, text: str) -> Path | None:
    """Read a folder's name, absolute and without links or `..`; None for none. Raises UsageError naming the flag."""
    if not text:
        return None
    try:
        return Path(text).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as problem:
        raise UsageError(f"--{flag} {text!r} cannot be the name of a folder: {problem}") from problem
