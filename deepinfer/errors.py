"""Errors that a user can act on: what happened, the likely cause, the next step, and the command's exit code."""

from __future__ import annotations

import errno
from collections.abc import Callable


class Option(str):
    """An option of the engine by its name in Python, as a piece of an error's text: max_model_len.

    Who shows the error writes it as his users do: a command line --max-model-len.
    """

    __slots__ = ()


Text = str | tuple[str, ...]
"""What an error says: a text, or pieces of one, of which some are an `Option`."""


class DeepInferError(Exception):
    """A failure that the user is told about in plain words.

    Args:
        what: what happened, one sentence.
        cause: the likely cause, if known.
        next_step: what to do or type next.
    """

    exit_code = 4

    def __init__(self, what: Text, *, cause: Text = "", next_step: Text = "") -> None:
        super().__init__(spelled(what))
        self._what, self._cause, self._next_step = what, cause, next_step

    @property
    def what(self) -> str:
        """What happened."""
        return spelled(self._what)

    @property
    def cause(self) -> str:
        """The likely cause, or ''."""
        return spelled(self._cause)

    @property
    def next_step(self) -> str:
        """What to do next, or ''."""
        return spelled(self._next_step)

    def told(self, spell: Callable[[Option], str] = str) -> str:
        """All of it, a line each. spell: how an option is written where it is shown."""
        lines = [spelled(self._what, spell)]
        if self._cause:
            lines.append(f"  likely cause: {spelled(self._cause, spell)}")
        if self._next_step:
            lines.append(f"  next step: {spelled(self._next_step, spell)}")
        return "\n".join(lines)

    def of(self, name: str) -> DeepInferError:
        """The same error, which begins with the name of what it is about."""
        what = (self._what,) if isinstance(self._what, str) else self._what
        return type(self)((f"{name}: ", *what), cause=self._cause, next_step=self._next_step)

    def __str__(self) -> str:
        return self.told()


class OptionError(ValueError):
    """A value of an option of the engine is not allowed. As a text: the option's name, and its fault.

    Args:
        option: its name in Python.
        fault: what is wrong with it, as in "must be at least 1, not 0".
    """

    def __init__(self, option: str, fault: str) -> None:
        super().__init__(option, fault)
        self.option, self.fault = Option(option), fault

    @property
    def pieces(self) -> tuple[str, ...]:
        """Its text, as a `DeepInferError` takes it."""
        return self.option, f" {self.fault}"

    def __str__(self) -> str:
        return spelled(self.pieces)


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


def spelled(text: Text, spell: Callable[[Option], str] = str) -> str:
    """What an error says, as one text. spell: how an option is written where it is shown."""
    pieces = (text,) if isinstance(text, str) else text
    return "".join(spell(piece) if isinstance(piece, Option) else piece for piece in pieces)


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
