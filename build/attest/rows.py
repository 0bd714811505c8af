"""The result of a check: a row for each fact, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "differs", "not checked"]
_SHOWN = 20
_NEXT = {
    "manifest": "the manifest was edited, or is of another build: bring it again from the machine that built the image",
    "image": "this is not the image that was built: pull it again by its digest, or build it anew",
    "files": "files of the image were changed after it was built: pull it again by its digest, or build it anew",
    "artefacts": "the component was built again since: what is in the wheelhouse is not what is in the image",
    "signature": "it was not signed, or not by the owner of this key; --sign signs it where it was built",
}


@dataclass(frozen=True)
class Row:
    """One fact. group: what it is a fact of.  note: what was looked at, or why it could not be."""

    group: str
    fact: str
    state: State
    recorded: str = ""
    found: str = ""
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All rows of one image."""

    reference: str
    image_id: str
    manifest: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """No fact differs."""
        return all(row.state != "differs" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """For `verify --json`."""
        return {
            "image": self.reference, "image_id": self.image_id, "ok": self.ok, "manifest": self.manifest,
            "facts": [asdict(row) for row in self.rows],
        }  # fmt: skip


def compared(group: str, fact: str, recorded: str, found: str) -> list[Row]:
    """A row if the two differ, none if they do not."""
    return [] if recorded == found else [Row(group, fact, "differs", recorded, found)]


def settled(group: str, fact: str, note: str, differing: Sequence[Row]) -> list[Row]:
    """The rows that differ, or where there are none a single one that says what agrees."""
    return list(differing) or [Row(group, fact, "ok", note=note)]


def as_text(report: Report) -> str:
    """The report for people: what agrees in a line each, what differs with both values, then what to do."""
    lines = [f"{report.reference}  {report.image_id}", f"  {report.manifest}"]
    groups = list(dict.fromkeys(row.group for row in report.rows))
    for group in groups:
        lines += _group([row for row in report.rows if row.group == group])
    wrong = [group for group in groups if any(r.group == group and r.state == "differs" for r in report.rows)]
    lines += [f"  next step: {_NEXT[group]}" for group in wrong]
    count = sum(row.state == "differs" for row in report.rows)
    differing = f"{count} fact differs" if count == 1 else f"{count} facts differ"
    lines.append(f"{report.reference}: {'verified' if report.ok else differing}")
    return "\n".join(lines)


def _group(rows: Sequence[Row]) -> Iterator[str]:
    shown = 0
    for row in rows:
        if row.state == "differs":
            shown += 1
            if shown > _SHOWN:
                continue
        detail = row.note or f"recorded {row.recorded or 'nothing'}, found {row.found or 'nothing'}"
        yield f"  {row.state:<11}  {row.fact}: {detail}"
    if shown > _SHOWN:
        yield f"  {'differs':<11}  and {shown - _SHOWN} more"
