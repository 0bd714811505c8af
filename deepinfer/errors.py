"""Errors that a user can act on: what happened, the likely cause, the next step, and the command's exit code."""

from __future__ import annotations

import errno


class DeepInferError(Exception):
    """A failure that the user is told about in plain words.

    Args:
        what: what happened, one sentence.
        cause: the likely cause, if known.
        next_step: what to do or type next.
    """

    exit_code = 4

    def __init__(self, what: str, *, cause: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [self.what]
        if self.cause:
            lines.append(f"  likely cause: {self.cause}")
        if self.next_step:
            lines.append(f"  next step: {self.next_step}")
        return "\n".join(lines)


class UsageError(DeepInferError):
    """The command line does not make sense."""

    exit_code = 1


class VariableError(DeepInferError, ValueError):
    """An environment variable has a value that is not allowed."""

    exit_code = 1


class NativeError(DeepInferError, ImportError):
    """deepinfer._C is here and cannot be used, or is required and not here."""


class KernelUnavailableError(DeepInferError, AttributeError):
    """No kernel has this name, or the backend that should provide it cannot."""


class ConfigError(DeepInferError, ValueError):
    """A checkpoint's config.json does not describe a model that can be run."""

    exit_code = 2


class CheckpointError(DeepInferError):
    """A checkpoint's files are not what its configuration says."""

    exit_code = 2


class InputError(DeepInferError, ValueError):
    """What was given to read (a prompt, a file of requests or of results) cannot be taken as it is."""

    exit_code = 2


class RequestFailed(DeepInferError):
    """A request, or some of many, ended in an error of its own; what the others gave stands."""

    exit_code = 5


_TAKEN = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY)
_NO_NAME = (errno.ENAMETOOLONG, errno.ELOOP)
_SHOWN = 70
"""Characters of a value that an error shows."""


def unwritable(what: str, problem: OSError) -> DeepInferError:
    """The error of a file or folder that was named to be written, and cannot be.

    A UsageError where the name leads nowhere or to something else. Else, without permission or room, this machine's.

    Args:
        what: what it is called and what cannot be done with it, as in "out.jsonl cannot be opened for writing".
    """
    told = f"{what}: {problem.strerror or problem}"
    if problem.filename is not None and not what.startswith(f"{problem.filename} "):
        told += f" ({problem.filename})"
    if problem.errno == errno.ENOENT:
        return UsageError(told, next_step="make the folder that it is to lie in, or name one that is there")
    if problem.errno in _TAKEN:
        return UsageError(told, next_step="name another: something else lies there")
    if problem.errno in _NO_NAME:
        return UsageError(told, next_step="name another")
    return DeepInferError(told, next_step="name one on a file system with room, in a folder that you may write to")


def kind_of(value: object) -> str:
    """A value that is not allowed, with its type, as errors show it."""
    return f"{type(value).__name__} {shown(value)}"


def shown(value: object) -> str:
    """A value that is not allowed, as errors show it: not more of it than a line takes."""
    try:
        text = repr(value)
    except ValueError:  # a whole number, or one in a list, of more digits than Python writes
        return "one of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
