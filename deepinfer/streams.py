"""The standard streams of a command where one is closed, or takes nothing more.

Python leaves None in the place of a stream that was closed when it started: what is printed there is lost without a
word, what is meant for stderr goes to stdout, and the next file that is opened gets the stream's number. And a stderr
that is full, or whose reader has gone, raises in the middle of the work, although it is only the notes that are lost.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, cast

from deepinfer.errors import UsageError


@contextlib.contextmanager
def standard() -> Iterator[None]:
    """In this block writing to stderr never fails, a closed stdout is an error for who writes to it, no file that is
    opened takes the number of a standard stream, and stdout takes the name of any file, whose bytes may be no text.
    """
    for descriptor in range(3):
        _occupy(descriptor)
    before = sys.stdout, sys.stderr
    errors = getattr(sys.stdout, "errors", None)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = cast(io.TextIOWrapper, _ClosedStdout())
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = getattr(sys.stderr, "encoding", "utf-8")
        raw = io.BufferedWriter(_Stderr())
        sys.stderr = io.TextIOWrapper(raw, encoding, errors="backslashreplace", line_buffering=True)
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
        if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.closed:
            sys.stdout.reconfigure(errors=errors)


def need_stdout() -> None:
    """For a command whose result goes to stdout, before it begins.

    Raises:
        UsageError: it is closed.
    """
    if isinstance(sys.stdout, _ClosedStdout):
        sys.stdout.write("")


def _occupy(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:  # the lowest number that is free, since those before it are taken by now
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _ClosedStdout(io.TextIOBase):
    """Takes nothing."""

    def write(self, text: str) -> NoReturn:
        """UsageError."""
        raise UsageError(
            "stdout is closed, and the output goes there", next_step="leave out >&-, or send it to a file: > FILE"
        )


class _Stderr(io.RawIOBase):
    """File 2, and nowhere what that does not take."""

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """As it is known to the system."""
        return 2

    def isatty(self) -> bool:
        """Whether somebody may be looking at it."""
        return os.isatty(2)

    def write(self, data: Any, /) -> int:
        """As many bytes as are taken; all of them where it fails."""
        try:
            return os.write(2, data)
        except OSError:
            return len(data)
