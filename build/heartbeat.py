"""Signs of life on stderr while something long goes on without a word."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

QUIET_SECONDS = 15.0
"""How often what goes on says so."""
_WIDTH = 100
_SOURCES = (".c", ".cc", ".cpp", ".cu", ".cxx")


@contextlib.contextmanager
def heartbeat(what: str, *, log: Path | None = None, every: float = QUIET_SECONDS) -> Iterator[None]:
    """Say every so many seconds how long `what` has gone on already, with the last line of its log."""
    ended = threading.Event()
    start = time.monotonic()

    def beat() -> None:
        while not ended.wait(every):
            line = activity(last_line(log)) if log is not None else ""
            print(
                f"{what}: {time.monotonic() - start:.0f} s" + (f", {line}" if line else ""), file=sys.stderr, flush=True
            )

    teller = threading.Thread(target=beat, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


_QUOTE = re.compile(r"\d*\s*\|")
"""How gcc begins a line of the source that it quotes, or the one that points into it."""


def activity(line: str) -> str:
    """A log's line in short: of a compile the step and the name of its source, of any other its beginning."""
    words = line.split()
    sources = [Path(word).name for word in words if word.endswith(_SOURCES)]
    if sources and len(line) > 60:
        step = re.match(r"\[\d+/\d+\] ", line)
        return (step[0] if step else "") + sources[-1]
    return shortened(line)


def shortened(text: str) -> str:
    """The beginning of a line that is too long for a terminal, cut between words where little is lost by that."""
    if len(text) <= _WIDTH:
        return text
    words = text[:_WIDTH].rpartition(" ")[0]
    return f"{words} …" if len(words) > _WIDTH * 0.8 else f"{text[:_WIDTH]}…"


def last_line(log: Path) -> str:
    """The last line of a log that says something; empty if there is none. gcc's quotes of the source do not."""
    try:
        with log.open("rb") as data:
            data.seek(max(0, log.stat().st_size - 4096))
            lines = data.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return ""
    told = (line.strip() for line in reversed(lines))
    return next((line for line in told if line and not _QUOTE.match(line)), "")
