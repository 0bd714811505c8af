"""How cells ended, and the table that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from build.plan import Cell


@dataclass(frozen=True)
class CellResult:
    """How a cell ended. `artefact` is a wheel, or the shared object of an extension; None unless built or cached."""

    cell: Cell
    status: Literal["built", "cached", "failed", "unsupported"]
    seconds: float = 0.0
    artefact: Path | None = None
    log: Path | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """For `build --json`; log and reason where there are any."""
        found = {"cell": self.cell.name, "version": self.cell.component.version, "status": self.status,
                 "key": self.cell.key, "seconds": round(self.seconds, 2)}  # fmt: skip
        more = {"log": str(self.log or ""), "reason": self.reason}
        return {**found, **{name: text for name, text in more.items() if text}}


def results_table(results: Sequence[CellResult]) -> str:
    """Cells, how they ended, seconds, size and file or reason, as aligned lines."""
    rows = [("component", "status", "seconds", "MB", "file or reason")]
    for result in results:
        size = f"{result.artefact.stat().st_size / 1e6:.1f}" if result.artefact is not None else ""
        what = result.artefact.name if result.artefact is not None else result.reason
        seconds = f"{result.seconds:.1f}" if result.status in ("built", "failed") else ""
        rows.append((result.cell.name, result.status, seconds, size, what))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}"
        for row in rows
    )
