"""What every verb shares: options read from strings, errors told in plain words with their exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from invoke.exceptions import Exit

from build.call import CallFailed
from build.errors import BuildError, EnvironmentCannot, UsageError

TROUBLE = (BuildError, CallFailed, OSError)
"""What `as_build_error` can tell."""


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Turn failures into a message and an exit code; DEEPINFER_DEBUG=1 shows the traceback as well."""
    try:
        yield
    except TROUBLE as problem:
        told = as_build_error(problem)
        show_traceback()
        print(told, file=sys.stderr)
        raise Exit(code=told.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, a rerun does the rest", file=sys.stderr)
        raise Exit(code=130) from None


def as_build_error(problem: BuildError | CallFailed | OSError) -> BuildError:
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
    name = f" ({problem.filename})" if problem.filename else ""
    return EnvironmentCannot(
        f"{problem.strerror or problem}{name}", next_step="`./run doctor` says what this machine lacks"
    )


def show_traceback() -> None:
    """With DEEPINFER_DEBUG=1, show where the failure that is being handled came from."""
    if os.environ.get("DEEPINFER_DEBUG", "0") not in ("", "0"):
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
