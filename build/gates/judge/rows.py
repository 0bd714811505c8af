"""The parts that verdicts are made of: rows, how processes ended, and which gate already named a module's fault."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from build.gates.catalogue import GATES
from build.gates.result import GateResult

_CURES = {gate.name: gate.failure for gate in GATES}
_ALL_SHOWN = 12


@dataclass(frozen=True)
class Ending:
    """How a process in the image ended. status is negative for a signal (`signal` names it)."""

    status: int
    signal: str = ""
    timed_out: bool = False
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Did it end by itself with status 0?"""
        return self.status == 0 and not self.timed_out

    def problem(self) -> str:
        """Why it failed, in a line: the signal and where Python was, the hang, or the last line of what it said."""
        if self.timed_out:
            return f"hung: no end after {self.seconds:.0f} s"
        if self.signal:
            place = _python_place(self.stderr)
            return f"killed by {self.signal}" + (f" at {place}" if place else "")
        said = [line for line in self.stderr.strip().splitlines() if line.strip()]
        return f"status {self.status}: {said[-1].strip() if said else 'it said nothing'}"

    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects that it printed, one a line; other lines (a library's greeting) are left out."""
        found = []
        for line in self.stdout.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def facts(self) -> dict[str, Any]:
        """The one JSON object that it printed last; empty if it printed none."""
        return (self.lines() or [{}])[-1]

    def document(self) -> Any:
        """The JSON on stdout, after whatever the base's own start-up printed before it. Raises ValueError."""
        lines = self.stdout.splitlines(keepends=True)
        start = next((number for number, line in enumerate(lines) if line.startswith(("{", "["))), 0)
        return json.loads("".join(lines[start:]))


def _python_place(stderr: str) -> str:
    """The innermost Python frame that is in a file, from faulthandler's report."""
    for path, line in re.findall(r'File "([^"]+)", line (\d+)', stderr):
        if not path.startswith("<"):
            return f"{path}:{line}"
    return ""


@dataclass(frozen=True)
class Row:
    """One thing that a gate looked at.

    ok: None when it cannot be judged; then `text` is the reason.
    subject: the module that is to blame if it fails, "" if none is.
    """

    ok: bool | None
    text: str
    subject: str = ""


@dataclass
class Verdicts:
    """Collects the gates' results in order; a module's fault is counted once, by the first gate that names it."""

    results: list[GateResult] = field(default_factory=list)
    blamed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, rows: Sequence[Row], *, seconds: float = 0.0, note: str = "") -> None:
        """Judge a gate by its rows. note: shown where nothing failed."""
        failed = [row for row in rows if row.ok is False and row.subject not in self.blamed]
        caused = [row for row in rows if row.ok is False and row.subject in self.blamed]
        skipped = [row.text for row in rows if row.ok is None]
        skipped += [f"{row.subject} already fails {self.blamed[row.subject]}" for row in caused]
        skipped = list(dict.fromkeys(skipped))
        passed = list(dict.fromkeys(row.text for row in rows if row.ok))
        if failed:
            for row in failed:
                if row.subject:
                    self.blamed.setdefault(row.subject, name)
            shown = [row.text for row in failed[:_ALL_SHOWN]]
            if len(failed) > _ALL_SHOWN:
                shown.append(f"and {len(failed) - _ALL_SHOWN} more")
            # File names need not be text; what is shown, logged and written as JSON has to be.
            detail = "\n".join([*shown, f"cure: {_CURES[name]}"]).encode(errors="backslashreplace").decode()
            self.results.append(GateResult(name, False, detail, seconds))
        elif not passed:
            reason = "; ".join(skipped) or note or "there is nothing to look at"
            self.results.append(GateResult(name, True, "", seconds, reason))
        else:
            detail = "; ".join([note] if note else passed)
            if skipped:
                detail += f" (not judged: {'; '.join(skipped)})"
            self.results.append(GateResult(name, True, detail, seconds))

    def skip(self, name: str, reason: str) -> None:
        """A gate that cannot apply."""
        self.results.append(GateResult(name, True, "", 0.0, reason))

    def failed(self, name: str) -> bool:
        """Did this gate fail?"""
        return any(result.name == name and not result.ok for result in self.results)


def ending(facts: Mapping[str, Any]) -> Ending:
    """From what the conductor printed of one task."""
    return Ending(**facts)
