"""Errors that a user can act on. Each carries an exit code and says what happened, why, and what to do next."""

from __future__ import annotations

import errno
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

    def to_json(self) -> dict[str, str | int]:
        """What a verb with --json prints in place of its result: the same parts, those that are empty left out."""
        parts = {"error": self.what, "cause": self.cause, "log": str(self.log or ""), "next_step": self.next_step}
        return {**{name: text for name, text in parts.items() if text}, "exit_code": self.exit_code}


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


def of_system(problem: OSError) -> EnvironmentCannot:
    """What the operating system refused, with the file and what helps."""
    place = problem.filename2 or problem.filename
    what = str(problem.strerror or problem) + (f" ({place})" if place else "")
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentCannot(
            what,
            cause="the disk of the output, of the build cache, of the temporary folder or of .venv is full",
            next_step="free space (`./run clean` tells what this project holds), or set DEEPINFER_BUILD_CACHE or "
            "TMPDIR to a folder on a larger disk; a rerun does what is missing",
        )
    if problem.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return EnvironmentCannot(
            what,
            cause="the folder is read-only, or belongs to another user",
            next_step="run as the user that it belongs to, or set DEEPINFER_BUILD_CACHE to a folder that you can write",
        )
    if problem.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY):
        return EnvironmentCannot(
            what,
            cause="something else lies where a file or folder of the build system belongs",
            next_step="look at it, and move it away; what is in the build cache can be made again",
        )
    return EnvironmentCannot(what, next_step="`./run doctor` says what this machine lacks")
