"""The document as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def markdown(found: Row) -> str:
    """Facts, bars that were missed, a table by workload, variants, and what was not measured."""
    parts = [_facts(found), _bars(found["bars"]), _times(found), _variants(found["variants"]), _problems(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def micro(seconds: float) -> str:
    """Microseconds with three digits that count."""
    value = seconds * 1e6
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _facts(found: Row) -> str:
    copy = found["copy_bytes_per_second"] / 1e12
    lines = ["# Kernels", ""]
    lines.append(
        f"{found['device']}, driver {found['driver'] or 'none'}, torch {found['torch']}, Triton {found['triton']}, "
        f"ptxas {found['ptxas']}, commit {found['commit']}, {found['date']}."
    )
    lines.append(
        f"Copy of the same run: {copy:.2f} TB/s, read and written. Times are medians, in "
        "us; GB/s and the fraction of the copy are of the bytes that have to move. "
        "`g`: in a CUDA graph; `s`: launched one by one; `1`: a single call; `*`: the buffers fit the cache."
    )
    return "\n".join(lines)


def _bars(bars: Sequence[Row]) -> str:
    if not bars:
        return ""
    kept = Counter(bar["bar"] for bar in bars if bar["kept"])
    total = Counter(bar["bar"] for bar in bars)
    lines = ["## Bars", "", "| bar | kept | of |", "|---|---:|---:|"]
    lines += [f"| {name} | {kept[name]} | {count} |" for name, count in total.items()]
    missed = [bar for bar in bars if not bar["kept"]]
    if missed:
        lines += ["", "Missed:", "", "| what | bar | value | limit |", "|---|---|---:|---:|"]
        lines += [
            f"| {bar['key']} | {bar['bar']} | {_value(bar, 'value')} | {_value(bar, 'limit')} |" for bar in missed
        ]
    return "\n".join(lines)


def _value(bar: Row, name: str) -> str:
    return f"{micro(bar[name])} us" if bar["unit"] == "s" else f"{bar[name]:.2f}".rstrip("0").rstrip(".")


def _times(found: Row) -> str:
    labels = [one["column"] for one in found["columns"]]
    if not labels:
        return ""
    by_key: dict[str, dict[str, Row]] = {}
    for row in found["rows"]:
        by_key.setdefault(row["key"], {})[row["column"]] = row
    head = ["kernel", "entry", "rows", "MB", f"{labels[0]} us", "GB/s", "of copy", *(f"{one} us" for one in labels[1:])]
    lines = ["## Times", "", f"| {' | '.join(head)} |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for own in sorted(by_key.values(), key=_place):
        lines.append(_line(own, labels))
    return "\n".join(lines)


def _place(own: Mapping[str, Row]) -> tuple[str, str, str, int]:
    row = next(iter(own.values()))
    return row["family"], row["factory"], row["entry"], row["rows"]


def _line(own: Mapping[str, Row], labels: Sequence[str]) -> str:
    any_row = next(iter(own.values()))
    measured = next((row for row in own.values() if not row["problem"]), None)
    moved = f"{measured['moved_bytes'] / 1e6:.3g}" if measured else ""
    first = own.get(labels[0])
    speeds = ["", ""]
    if first and not first["problem"]:
        speeds = [f"{first['bytes_per_second'] / 1e9:,.0f}", f"{first['fraction']:.2f}"]
    cells = [any_row["factory"].removesuffix("_tl"), any_row["entry"], str(any_row["rows"]), moved]
    cells += [_cell(first), *speeds, *(_cell(own.get(label)) for label in labels[1:])]
    return f"| {' | '.join(cells)} |"


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["problem"]:
        return "failed"
    mark = {"graph": "g", "stream": "s", "once": "1"}[row["how"]]
    return f"{micro(row['seconds'])} {mark}{'' if row['beyond_cache'] else '*'}"


def _variants(variants: Mapping[str, Mapping[str, Row]]) -> str:
    labels = [name for name, own in variants.items() if any(one["variants"] for one in own.values())]
    if not labels:
        return ""
    lines = ["## Compiled variants over all rows, and seconds in Triton's compiler", ""]
    lines += [f"| kernel | {' | '.join(labels)} |", "|---" + "|---:" * len(labels) + "|"]
    for factory in dict.fromkeys(name for label in labels for name in variants[label]):
        cells = [variants[label].get(factory) for label in labels]
        shown = ["-" if one is None else _compiled(one) for one in cells]
        lines.append(f"| {factory.removesuffix('_tl')} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _compiled(one: Row) -> str:
    """A kernel without a variant of its own runs what was compiled for one above it."""
    return f"{one['variants']}, {one['compile_seconds']:.1f} s" if one["variants"] else "shared"


def _problems(found: Row) -> str:
    lines = [f"- {row['column']}, {row['key']}: {row['problem']}" for row in found["rows"] if row["problem"]]
    for one in found["columns"]:
        if one["problem"]:
            lines.append(f"- {one['column']}: {one['problem']}")
        if one["not_reached"]:
            lines.append(f"- {one['column']}: {one['not_reached']} workloads were not reached in its time")
    return "\n".join(["## Not measured", "", *lines]) if lines else ""
