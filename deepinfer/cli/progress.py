"""A progress bar on stderr: tqdm's where it is installed, else a line now and then."""

from __future__ import annotations

import importlib
import sys
import time
from types import TracebackType
from typing import Any

_BETWEEN_S = 10.0
"""Without tqdm: the time between two lines."""


class Progress:
    """Counts what is done of a total.

    Example:
        with Progress("requests", total=8) as bar:
            bar.advance()

    Args:
        what: the name of what is counted.
        total: how many there are; None where `reach` will say it, and nothing is shown before.
        shown: False: nothing is written.
        bytes_: count bytes, and write them so.
    """

    def __init__(self, what: str, total: int | None, *, shown: bool = True, bytes_: bool = False) -> None:
        self._what, self._total, self._done = what, total, 0
        self._shown, self._bytes = shown, bytes_
        self._told = time.monotonic()
        self._bar: Any = _tqdm(what, total, bytes_) if shown and total is not None else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._shown and kind is None and self._done:
            self._tell()

    def advance(self, by: int = 1) -> None:
        """So many more are done."""
        self._done += by
        if self._bar is not None:
            self._bar.update(by)
        elif self._shown and time.monotonic() - self._told >= _BETWEEN_S:
            self._tell()

    def reach(self, done: int, total: int) -> None:
        """So much is done, of a total that may have become known by now."""
        if self._shown and self._bar is None and self._total is None:  # not before: an error may come first
            self._bar = _tqdm(self._what, total, self._bytes)
        if self._bar is not None:
            self._bar.total = total
        self._total = total
        self.advance(done - self._done)

    def say(self, text: str) -> None:
        """Write a line on stderr, above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)

    def _tell(self) -> None:
        self._told = time.monotonic()
        of = "" if self._total is None else f" of {self._written(self._total)}"
        print(f"{self._what}: {self._written(self._done)}{of}", file=sys.stderr, flush=True)

    def _written(self, count: int) -> str:
        return f"{count / 1e9:.2f} GB" if self._bytes else str(count)


def _tqdm(what: str, total: int | None, bytes_: bool) -> Any:
    try:
        bar = importlib.import_module("tqdm").tqdm
    except ImportError:
        return None
    scale = {"unit": "B", "unit_scale": True} if bytes_ else {"unit": ""}
    return bar(total=total, desc=what, file=sys.stderr, dynamic_ncols=True, mininterval=0.5, **scale)
