"""How a gate ended, and how that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class GateResult:
    """One gate's verdict.

    detail: what was found; for a failed gate the files, the likely cause and what to do, a line each.
    skipped_reason: why the gate does not apply (then ok is True, and `state` says n/a). Never empty without cause.
    """

    name: str
    ok: bool
    detail: str
    seconds: float = 0.0
    skipped_reason: str = ""

    @property
    def state(self) -> Literal["passed", "failed", "n/a"]:
        """The word for a table."""
        if not self.ok:
            return "failed"
        return "n/a" if self.skipped_reason else "passed"

    def to_json(self) -> dict[str, Any]:
        """For `check --json` and the manifest."""
        return {
            "name": self.name,
            "state": self.state,
            "ok": self.ok,
            "detail": self.detail,
            "skipped_reason": self.skipped_reason,
            "seconds": round(self.seconds, 2),
        }


def as_text(results: Sequence[GateResult]) -> str:
    """A line a gate, with every line of a failed gate's detail below it."""
    width = max((len(result.name) for result in results), default=0)
    lines = []
    for result in results:
        first, *rest = (result.skipped_reason or result.detail).splitlines() or [""]
        lines.append(f"  {result.name:<{width}}  {result.state:<6}  {first}")
        if not result.ok:
            lines += [f"  {'':<{width}}          {line}" for line in rest]
    failed = [result.name for result in results if not result.ok]
    skipped = sum(result.state == "n/a" for result in results)
    verdict = f"failed: {', '.join(failed)}" if failed else "all gates that apply passed"
    lines.append(f"  {len(results)} gates, {skipped} not applicable; {verdict}")
    return "\n".join(lines)
