"""From the columns' lines to one document: fractions of the copy, comparisons, bars."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ops.entry import Entry

SCHEMA = 1
COPY_BAR, COPY_BYTES = 0.80, 64 * 10**6
"""What memory-bound kernels reach of the copy, from this much traffic on."""
METADATA_BAR, METADATA_ROWS = 10e-6, 256
SAMPLE_ENTRY = "fused_sample_tl/top-p-0.95-top-k-128"
SAMPLE_BARS = {64: 0.20e-3, 256: 0.6e-3}
UPSTREAM_BAR = 1.10
VARIANTS_BAR = 8
Row = dict[str, Any]


def read(file: Path) -> list[Row]:
    """The lines of a run. One that was cut off is left out."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def append(file: Path, **line: Any) -> None:
    """Add a line to a run, in one write: whoever is killed leaves whole lines."""
    with file.open("a", encoding="utf-8") as appended:
        appended.write(json.dumps(line) + "\n")


def of(lines: Iterable[Row], label: str) -> list[Row]:
    """The lines of a column."""
    return [line for line in lines if line["column"] == label]


def unfinished(lines: Iterable[Row]) -> str:
    """The workload of a column that was begun and not ended: what a process crashed in; '' for none."""
    begun = ""
    for line in lines:
        if line["kind"] == "begun":
            begun = line["key"]
        elif line["kind"] == "row":
            begun = ""
    return begun


def document(lines: Sequence[Row], entries: Sequence[Entry], command: Sequence[str]) -> Row:
    """All of a run, JSON-able. The first column is the one that the bars are about."""
    labels = list(dict.fromkeys(line["column"] for line in lines))
    columns = [_column(label, of(lines, label)) for label in labels]
    copies = {one["column"]: one["copy_bytes_per_second"] for one in columns}
    rows = [_row(line, copies[line["column"]]) for line in lines if line["kind"] == "row"]
    main = columns[0] if columns else {}
    named = ("date", "device", "driver", "torch", "triton", "ptxas", "cuda", "commit", "python", "cache_bytes")
    return {
        "schema": SCHEMA,
        **{name: main.get(name, "") for name in named},
        "copy_bytes_per_second": main.get("copy_bytes_per_second", 0.0),
        "command": list(command),
        "columns": columns,
        "rows": rows,
        "variants": variants(rows),
        "bars": bars(columns, rows, entries),
    }


def _column(label: str, lines: Sequence[Row]) -> Row:
    """What a column's figures depend on, its copy, why it ended early and how much it left."""
    facts: Row = next((line for line in lines if line["kind"] == "facts"), {})
    copies = [line["bytes_per_second"] for line in lines if line["kind"] == "copy"]
    ends = [line for line in lines if line["kind"] == "end"]
    return {
        **{name: value for name, value in facts.items() if name != "kind"},
        "column": label,
        "implementation": facts.get("implementation", ""),
        "copy_bytes_per_second": max(copies, default=0.0),
        "problem": "; ".join(line["problem"] for line in lines if line["kind"] == "problem"),
        "not_reached": ends[-1]["planned"] - ends[-1]["reached"] if ends else None,
    }


def _row(line: Row, copy: float) -> Row:
    """A row with its speed, and that as a fraction of its own process's copy."""
    row = {name: value for name, value in line.items() if name != "kind"}
    if row["problem"]:
        return row
    speed = row["moved_bytes"] / row["seconds"]
    return {**row, "bytes_per_second": speed, "fraction": speed / copy if copy else 0.0}


def variants(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """column -> factory -> how many variants its kernels had over all rows, and the seconds in Triton's compiler."""
    hashes: dict[str, dict[str, set[str]]] = {}
    seconds: dict[str, dict[str, float]] = {}
    for row in rows:
        if not row["problem"]:
            hashes.setdefault(row["column"], {}).setdefault(row["factory"], set()).update(row["variants"])
            own = seconds.setdefault(row["column"], {})
            own[row["factory"]] = own.get(row["factory"], 0.0) + row["compile_seconds"]
    return {
        name: {one: {"variants": len(found), "compile_seconds": seconds[name][one]} for one, found in own.items()}
        for name, own in hashes.items()
    }


def bars(columns: Sequence[Row], rows: Sequence[Row], entries: Sequence[Entry]) -> list[Row]:
    """What the kernels should reach, and whether the first column does."""
    if not columns:
        return []
    main = columns[0]["column"]
    kinds = {one["column"]: one["implementation"] for one in columns}
    known = {entry.key: entry for entry in entries}
    by_column: dict[str, dict[str, Row]] = {}
    for row in rows:
        if not row["problem"]:
            by_column.setdefault(row["column"], {})[row["key"]] = row
    found: list[Row] = []
    for key, row in by_column.get(main, {}).items():
        name = f"{row['factory']}/{row['entry']}"
        found += _own_bars(key, name, row, known.get(name))
        for other, kind in kinds.items():
            beside = by_column.get(other, {}).get(key)
            if beside and kind in ("reference", "upstream"):
                limit = beside["seconds"] * (UPSTREAM_BAR if kind == "upstream" else 1.0)
                found.append(_bar(f"no slower than {other}", key, row["seconds"], limit, "s"))
    for kernel, count in sorted(_by_kernel(by_column.get(main, {}).values()).items()):
        found.append(_bar("compiled variants", kernel, count, VARIANTS_BAR, ""))
    return found


def _by_kernel(rows: Iterable[Row]) -> Counter[str]:
    """FACTORY, KERNEL -> variants."""
    distinct = {(row["factory"], one) for row in rows for one in row["variants"]}
    return Counter(f"{factory}, {one.partition(':')[0]}" for factory, one in distinct)


def _own_bars(key: str, name: str, row: Mapping[str, Any], entry: Entry | None) -> list[Row]:
    found = []
    if entry and entry.copy_bound and row["moved_bytes"] >= COPY_BYTES:
        found.append({**_bar("fraction of the copy", key, row["fraction"], COPY_BAR, ""),
                      "kept": row["fraction"] >= COPY_BAR})  # fmt: skip
    if entry and entry.metadata and row["rows"] == METADATA_ROWS:
        found.append(_bar("decode metadata", key, row["seconds"], METADATA_BAR, "s"))
    if name == SAMPLE_ENTRY and row["rows"] in SAMPLE_BARS:
        found.append(_bar("sampling", key, row["seconds"], SAMPLE_BARS[row["rows"]], "s"))
    return found


def _bar(bar: str, key: str, value: float, limit: float, unit: str) -> Row:
    return {"bar": bar, "key": key, "value": value, "limit": limit, "unit": unit, "kept": value <= limit}
