"""Everything that is wrong with a matrix file, gathered so that the user sees all of it at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from build.errors import MatrixError

Where = tuple[str | int, ...]
SHOWN = 40


def near(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the valid name nearest to a wrong one, or the valid names where none is near."""
    valid = list(dict.fromkeys(names))
    found = difflib.get_close_matches(name[:80], valid, n=1)
    if not found:
        found = [one for one in valid if one.casefold() == name.casefold()][:1]
    if found:
        return f"; did you mean {found[0]!r}?"
    return f"; one of {', '.join(valid[:20])}" if valid else ""


def shown(text: object, limit: int = 60) -> str:
    """A text of the user's as it can be printed anywhere: quoted, escaped, cut."""
    quoted = ascii(text)
    return quoted if len(quoted) <= limit else quoted[: limit - 2] + "…'"


def dotted(where: Where) -> str:
    """`components.nccl.source.sha256`, `images.cpu.components[2]`."""
    parts: list[str] = []
    for step in where:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", step) is not None
            parts.append(("." if parts else "") + (step if plain else shown(step)))
    return "".join(parts)


@dataclass
class Problems:
    """Problems of one file. `lines` remembers where each key stands, so that later checks can name its line."""

    file: str
    lines: dict[Where, int] = field(default_factory=dict)
    found: dict[tuple[int, Where, str], None] = field(default_factory=dict)

    def add(self, where: Where, text: str, line: int | None = None) -> None:
        """Note one problem. Without a line, the line of the nearest enclosing key that the file has."""
        self.found.setdefault((self.line(where) if line is None else line, where, text))

    def check(self, where: Where, good: bool, text: str) -> None:
        """Note a problem unless `good`, or unless that key or one inside or around it is wrong already."""
        if not good and not any(seen[: len(where)] == where or where[: len(seen)] == seen for seen in self.wheres()):
            self.add(where, text)

    def wheres(self) -> list[Where]:
        """The keys that have a problem."""
        return [where for _, where, _ in self.found if where]

    def line(self, where: Where) -> int:
        """The line of a key, or of the nearest enclosing one."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def raise_if_any(self) -> None:
        """Raise MatrixError with every problem, in the order of the file."""
        if not self.found:
            return
        rows = [
            f"{self.file}:{line}: {dotted(where)}{': ' if where else ''}{text}"
            for line, where, text in sorted(self.found, key=lambda item: item[0])
        ]
        count = len(rows)
        if count > SHOWN:
            rows = [*rows[:SHOWN], f"… and {count - SHOWN} more"]
        listed = "".join(f"\n  {row}" for row in rows)
        raise MatrixError(
            f"{self.file} has {count} problem{'s' if count > 1 else ''}:{listed}",
            next_step="correct these lines; docs/matrix.md says what each key means",
        )
