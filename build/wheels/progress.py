"""Progress of parallel compiles on stderr: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from build.heartbeat import QUIET_SECONDS, activity, last_line


class Progress:
    """Who compiles, for how long, and the last line of its log. Used from one thread."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.running: dict[str, tuple[float, Path]] = {}
        self.spoken: dict[str, float] = {}
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def started(self, name: str, log: Path) -> None:
        """A compile begins."""
        self.running[name] = (time.monotonic(), log)
        self.spoken[name] = time.monotonic()
        self._say(f"{name}: compiling")

    def finished(self, name: str, how: str) -> None:
        """A compile ended; `how` goes behind its name."""
        self.running.pop(name, None)
        self._say(f"{name}: {how}")

    def tick(self) -> None:
        """Show what goes on; call it often."""
        now = time.monotonic()
        if self.console.is_terminal:
            table = Table.grid(padding=(0, 2))
            for name, (since, log) in self.running.items():
                table.add_row(
                    name, f"{now - since:.0f} s", activity(last_line(log))[: max(20, self.console.width - 40)]
                )
            self.live.update(table)
            return
        for name, (since, log) in self.running.items():
            if now - self.spoken[name] >= QUIET_SECONDS:
                self.spoken[name] = now
                self._say(f"{name}: {now - since:.0f} s, {activity(last_line(log))}")

    def _say(self, text: str) -> None:
        if self.console.is_terminal:
            self.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)
