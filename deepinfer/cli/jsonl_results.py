"""Results as lines of JSON: written one by one, found again after a kill.

A result's line is written whole with one call, and ends in a line end. What has none is the half of a line that a kill
left: it is cut off when the file is opened again. The file is locked while it is open here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deepinfer.cli.jsonl_requests import LineRequest
from deepinfer.errors import DeepInferError, InputError, UsageError, unwritable


class Results(Protocol):
    """Where results go. done: ids whose results are there already. failed: those of them that ended in an error."""

    done: frozenset[str]
    failed: frozenset[str]

    def write(self, result: Mapping[str, Any]) -> None:
        """Write one as a line; it is on its way when this returns."""


class StdoutResults:
    """Results on stdout: nothing is there already."""

    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()

    def write(self, result: Mapping[str, Any]) -> None:
        """One line, flushed."""
        sys.stdout.write(_line(result))
        sys.stdout.flush()


@dataclass(frozen=True)
class _Answer:
    """A line that is there: the id that it answers, whether with an error, and whether it says by which model."""

    id: str
    failed: bool
    told: bool
    data: bytes


class FileResults:
    """Results in a file that is open, locked and examined; see `open_results`."""

    def __init__(self, path: Path, descriptor: int, answers: Sequence[_Answer]) -> None:
        self.done = frozenset(one.id for one in answers)
        self.failed = frozenset(one.id for one in answers if one.failed)
        self._path, self._descriptor = path, descriptor

    def write(self, result: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            DeepInferError: the file system does not take it; what had been written of it is taken back.
        """
        size = os.fstat(self._descriptor).st_size
        try:
            # A lone surrogate, as of a request that an error cites, becomes its escape in JSON, by its number.
            _write(self._descriptor, _line(result).encode(errors="backslashreplace"))
        except OSError as problem:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise _unwritten(self._path, problem) from problem


@contextlib.contextmanager
def open_results(
    path: Path, requests: Iterable[LineRequest], *, model: str, retry_failed: bool = False
) -> Iterator[FileResults]:
    """Open a file of results, made if need be, and find which of `requests` it answers.

    model: what results are made with, as their "model" says (see `fingerprint`). Those that do not say it are kept,
    and that is told on stderr.
    retry_failed: take results that are errors out of the file first, those of other requests too: they answer none.
    It is replaced as a whole, where it lies: a symbolic link to it stays.

    Raises:
        InputError: the file is no file of results, or one of other requests or of another model: the line is named.
            Nothing was changed.
        UsageError: its name leads nowhere, or to what is no file.
        DeepInferError: this machine does not let it be opened, or another process writes it.
    """
    descriptor = _open(path)
    try:
        answers, rest = _examine(path, {one.id: one for one in requests}, model, retry_failed)
        if retry_failed and any(one.failed for one in answers):
            answers = [one for one in answers if not one.failed]
            replaced = _replace(Path(os.path.realpath(path)), path, b"".join(one.data for one in answers))
            os.close(descriptor)
            descriptor = replaced
        elif rest:
            os.ftruncate(descriptor, sum(len(one.data) for one in answers))
        if rest:
            print(f"{path}: a line that was half written is cut off, and made again", file=sys.stderr, flush=True)
        if untold := sum(not one.told for one in answers):
            print(
                f"{path}: {untold} results do not say which model made them, and are kept", file=sys.stderr, flush=True
            )
        yield FileResults(path, descriptor, answers)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """A file to append to, locked."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        raise unwritable(f"{path} cannot be opened for writing", problem) from problem
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path} is no regular file", next_step='name a file, or "-" for stdout')
        _lock(path, descriptor)
        if not _is_at(path, found):
            raise _busy(path)  # who had it has put another in its place, and has locked that one
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, path.stat())
    except FileNotFoundError:
        return False


def _replace(path: Path, named: Path, data: bytes) -> int:
    """Put a file with `data` in the place of another, which is locked, and open it, locked all the while.

    path: where it lies. named: how errors call it.
    """
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.unlink(missing_ok=True)  # what a kill has left: who holds the other file's lock is alone here
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise unwritable(f"{named} cannot be replaced", problem) from problem
    try:
        _lock(named, descriptor)
        _write(descriptor, data)
        os.fchmod(descriptor, path.stat().st_mode & 0o777)
        aside.rename(path)
    except BaseException as problem:
        os.close(descriptor)
        aside.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise _unwritten(named, problem) from problem
        raise
    return descriptor


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _unwritten(path: Path, problem: OSError) -> DeepInferError:
    return DeepInferError(
        f"{path} cannot be written: {problem.strerror}",
        cause="the file system is full, or a quota is reached",
        next_step="make room and run the same command again: it goes on where it stopped",
    )


def _busy(path: Path) -> DeepInferError:
    return DeepInferError(
        f"{path} is being written by another process",
        cause="`deepinfer generate` runs twice with one output",
        next_step="wait for the other, or name another --output",
    )


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        raise _busy(path) from problem
    except OSError as problem:
        raise DeepInferError(
            f"{path} cannot be locked: {problem.strerror}",
            cause="its file system has no locks",
            next_step="name an --output on another file system",
        ) from problem


def _examine(
    path: Path, requests: Mapping[str, LineRequest], model: str, retry_failed: bool
) -> tuple[list[_Answer], bytes]:
    """The file's whole lines, and what follows the last of them. retry_failed: those that are errors are to go."""
    *lines, rest = path.read_bytes().split(b"\n")
    seen: dict[str, int] = {}
    answers = []
    for number, line in enumerate(lines, start=1):
        answer = _answer(path, number, line, requests, model, retry_failed)
        if answer.id in seen:
            raise _bad(path, number, f"it repeats the id {answer.id!r} of line {seen[answer.id]}")
        seen[answer.id] = number
        answers.append(answer)
    return answers, rest


def _answer(
    path: Path, number: int, line: bytes, requests: Mapping[str, LineRequest], model: str, retry_failed: bool
) -> _Answer:
    try:
        value = json.loads(line.decode("utf-8"))
        name, key, made_with = value["id"], value["key"], value.get("model")
        failed = any(one["finish_reason"] == "error" for one in value["outputs"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise _bad(path, number, "it is no result of `deepinfer generate`") from problem
    if isinstance(name, str) and failed and retry_failed:
        return _Answer(name, failed, made_with is not None, line + b"\n")
    if not isinstance(name, str) or name not in requests:
        raise _bad(path, number, f"its id {name!r} is not among the requests", failed)
    if key != requests[name].key:
        raise _bad(path, number, f"it answers {name!r} with another prompt or other sampling options", failed)
    if made_with not in (None, model):
        raise InputError(
            f"{path}, line {number}: it was made with another model, and answers of two would be mixed",
            cause="--model names another checkpoint, its files were changed, or --load-format, --engram-rows, "
            "--truncation or --gemm are not as they were, or dummy weights were made on another device",
            next_step="name another --output, or the model and the options that the file was made with",
        )
    return _Answer(name, failed, made_with is not None, line + b"\n")


def _bad(path: Path, number: int, what: str, failed: bool = False) -> InputError:
    return InputError(
        f"{path}, line {number}: {what}",
        cause="the file is another run's, or the requests have been changed since",
        next_step=("--retry-failed takes it out, since it is an error; or " if failed else "")
        + "name another --output, or delete these lines (or the file)",
    )


def _line(result: Mapping[str, Any]) -> str:
    return json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n"
