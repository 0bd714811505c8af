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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from deepinfer.cli.jsonl_requests import LineRequest
from deepinfer.errors import DeepInferError, InputError


class Results(Protocol):
    """Where results go. done: ids whose results are there already."""

    done: frozenset[str]

    def write(self, result: Mapping[str, Any]) -> None:
        """Write one as a line; it is on its way when this returns."""


class StdoutResults:
    """Results on stdout: nothing is there already."""

    done: frozenset[str] = frozenset()

    def write(self, result: Mapping[str, Any]) -> None:
        """One line, flushed."""
        sys.stdout.write(_line(result))
        sys.stdout.flush()


class FileResults:
    """Results in a file that is open, locked and examined; see `open_results`."""

    def __init__(self, path: Path, descriptor: int, done: frozenset[str]) -> None:
        self.done = done
        self._path, self._descriptor = path, descriptor

    def write(self, result: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            DeepInferError: the file system does not take it; what had been written of it is taken back.
        """
        data = _line(result).encode()
        size = os.fstat(self._descriptor).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as problem:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise DeepInferError(
                f"{self._path} cannot be written: {problem.strerror}",
                cause="the file system is full, or a quota is reached",
                next_step="make room and run the same command again: it goes on where it stopped",
            ) from problem


@contextlib.contextmanager
def open_results(path: Path, requests: Iterable[LineRequest]) -> Iterator[FileResults]:
    """Open a file of results, made if need be, and find which of `requests` it answers.

    Raises:
        InputError: the file is no file of results, or one of other requests: the line is named. Nothing was changed.
        DeepInferError: it cannot be opened, or another process writes it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        raise DeepInferError(
            f"{path} cannot be opened for writing: {problem.strerror}",
            next_step="name a file in a folder that is there and writable",
        ) from problem
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DeepInferError(f"{path} is no regular file", next_step='name a file, or "-" for stdout')
        _lock(path, descriptor)
        yield FileResults(path, descriptor, _examine(path, descriptor, {one.id: one for one in requests}))
    finally:
        os.close(descriptor)


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        raise DeepInferError(
            f"{path} is being written by another process",
            cause="`deepinfer generate` runs twice with one output",
            next_step="wait for the other, or name another --output",
        ) from problem
    except OSError as problem:
        raise DeepInferError(
            f"{path} cannot be locked: {problem.strerror}",
            cause="its file system has no locks",
            next_step="name an --output on another file system",
        ) from problem


def _examine(path: Path, descriptor: int, requests: Mapping[str, LineRequest]) -> frozenset[str]:
    """Ids that the file answers. The half of a last line is cut off, once all before it has been found good."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    seen: dict[str, int] = {}
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        name = _answered(path, number, line, requests)
        if name in seen:
            raise _bad(path, number, f"it repeats the id {name!r} of line {seen[name]}")
        seen[name] = number
    if len(whole) != len(data):
        os.ftruncate(descriptor, len(whole))
        print(f"{path}: a line that was half written is cut off, and made again", file=sys.stderr, flush=True)
    return frozenset(seen)


def _answered(path: Path, number: int, line: bytes, requests: Mapping[str, LineRequest]) -> str:
    try:
        value = json.loads(line.decode("utf-8"))
        name, key = value["id"], value["key"]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise _bad(path, number, "it is no result of `deepinfer generate`") from problem
    if not isinstance(name, str) or name not in requests:
        raise _bad(path, number, f"its id {name!r} is not among the requests")
    if key != requests[name].key:
        raise _bad(path, number, f"it answers {name!r} with another prompt or other sampling options")
    return name


def _bad(path: Path, number: int, what: str) -> InputError:
    return InputError(
        f"{path}, line {number}: {what}",
        cause="the file is another run's, or the requests have been changed since",
        next_step="name another --output, or delete these lines (or the file)",
    )


def _line(result: Mapping[str, Any]) -> str:
    return json.dumps(result, ensure_ascii=False, allow_nan=False) + "\n"
