"""How the harness tells what it does: lines on stderr, the result on stdout."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.ops.ab.compare import Row
from deepinfer.ops.ab.sides import told
from deepinfer.ops.case import Case


def begun(case: Case, *, events: bool) -> None:
    """A case begins: said before, so that a crash or a hang can be laid to it."""
    if events:
        _event({"begun": f"{case.factory}/{case.name}"})
    else:
        print(f"{case.factory}/{case.name} ... ", end="", file=sys.stderr, flush=True)


def ended(row: Row, *, events: bool) -> None:
    """A case has ended."""
    if events:
        _event(dataclasses.asdict(row))
        return
    if row.skipped:
        print(f"{row.factory}/{row.case} skipped: {row.skipped}", file=sys.stderr, flush=True)
        return
    print("ok" if row.ok else "WRONG", file=sys.stderr, flush=True)
    for problem in row.problems:
        print(f"    {problem}", file=sys.stderr, flush=True)


def result(
    rows: Sequence[Row], expected: Mapping[str, str], got: Mapping[str, str], *, as_json: bool, events: bool
) -> None:
    """AB_OK or the table of what differs, or all of it as JSON."""
    ok = all(row.ok for row in rows)
    if as_json:
        found = [dataclasses.asdict(row) for row in rows]
        print(json.dumps({"ok": ok, "expected": dict(expected), "got": dict(got), "rows": found}))
    elif not events:
        print("\n".join(as_table(rows, expected, got)))


def as_table(rows: Sequence[Row], expected: Mapping[str, str], got: Mapping[str, str]) -> list[str]:
    """The lines of the result."""
    ran, wrong = [row for row in rows if not row.skipped], [row for row in rows if not row.ok]
    lines = [f"expected: {told(expected)}", f"got:      {told(got)}"]
    for reason, count in Counter(row.skipped for row in rows if row.skipped).items():
        lines.append(f"skipped {count}: {reason}")
    if not wrong:
        kernels = len({row.factory for row in ran})
        return [*lines, f"AB_OK: {len(ran)} cases of {kernels} kernels agree"]
    width = max(len(f"{row.factory}/{row.case}") for row in wrong)
    for row in wrong:
        lines += [f"{f'{row.factory}/{row.case}':<{width}}  {problem}" for problem in row.problems]
    return [*lines, f"AB_DIFFERS: {len(wrong)} of {len(ran)} cases"]


def _event(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)
