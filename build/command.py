"""What every verb shares: options read from strings, errors told in plain words with their exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from invoke.exceptions import Exit

from build.call import CallFailed
from build.errors import BuildError, UsageError


@contextlib.contextmanager
def told_plainly() -> Iterator[None]:
    """Turn failures into a message and an exit code; DEEPINFER_DEBUG=1 shows the traceback as well."""
    try:
        yield
    except BuildError as problem:
        _debug()
        print(problem, file=sys.stderr)
        raise Exit(code=problem.exit_code) from None
    except CallFailed as problem:
        _debug()
        where = f"\n  log: {problem.log}" if problem.log else ""
        print(f"error: {problem}\n{problem.tail}{where}", file=sys.stderr)
        raise Exit(code=BuildError.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, a rerun does the rest", file=sys.stderr)
        raise Exit(code=130) from None
    except OSError as problem:
        _debug()
        name = f" ({problem.filename})" if problem.filename else ""
        print(
            f"error: {problem.strerror or problem}{name}\n  next step: `./run doctor` says what this machine lacks",
            file=sys.stderr,
        )
        raise Exit(code=BuildError.exit_code) from None


def _debug() -> None:
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
