"""Errors that a user can act on. Each carries an exit code and says what happened, why, and what to do next."""

from __future__ import annotations

from pathlib import Path


class BuildError(Exception):
    """A failure that the user is told about in plain words; never shown as a traceback.

    Args:
        what: what happened, one sentence.
        cause: the likely cause, if known.
        next_step: what to do or type next.
        log: the file that holds the details, if any.
    """

    exit_code = 4

    def __init__(self, what: str, *, cause: str = "", next_step: str = "", log: Path | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.next_step = next_step
        self.log = log

    def __str__(self) -> str:
        lines = [f"error: {self.what}"]
        if self.cause:
            lines.append(f"  likely cause: {self.cause}")
        if self.log is not None:
            lines.append(f"  log: {self.log}")
        if self.next_step:
            lines.append(f"  next step: {self.next_step}")
        return "\n".join(lines)


class UsageError(BuildError):
    """The command line does not make sense."""

    exit_code = 1


class MatrixError(BuildError):
    """matrix.yaml, or a lock or recipe that it names, is wrong."""

    exit_code = 2


class NothingSelected(BuildError):
    """The selection (`--image`, `--component`) names nothing that exists."""

    exit_code = 3


class EnvironmentCannot(BuildError):
    """This machine cannot do it: no Docker, no registry, no space, no compiler, no torch."""

    exit_code = 4


class GateFailed(BuildError):
    """The finished image or prefix failed a check."""

    exit_code = 5


class CellFailed(BuildError):
    """A component did not compile."""

    exit_code = 6
