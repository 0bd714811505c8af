"""The fraction of the copy that each memory-bound kernel reaches: with matplotlib where it is, else as our own SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.ops.results import COPY_BAR, COPY_BYTES

WIDTH, BAR, GAP, LEFT = 860, 14, 6, 380


def bars(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(workload, fraction of the copy) of the first column, from the bar's traffic on; best first."""
    first = found["columns"][0]["column"] if found["columns"] else ""
    rows = [
        row
        for row in found["rows"]
        if row["column"] == first and not row["problem"] and row["moved_bytes"] >= COPY_BYTES
    ]
    return sorted(((row["key"], row["fraction"]) for row in rows), key=lambda one: -one[1])


def draw(found: Mapping[str, Any], folder: Path) -> Path:
    """Write fraction.png or fraction.svg into the folder; its path."""
    shown = bars(found)
    title = f"Fraction of the device's copy, {found['device']}, Triton {found['triton']}"
    try:
        return _with_matplotlib(shown, title, folder / "fraction.png")
    except ImportError:
        path = folder / "fraction.svg"
        path.write_text(svg(shown, title), encoding="utf-8")
        return path


def _with_matplotlib(shown: Sequence[tuple[str, float]], title: str, path: Path) -> Path:
    import matplotlib  # type: ignore[import-not-found]  # it is used where it happens to be

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1 + 0.25 * len(shown)))
    axes.barh([name for name, _ in shown], [value for _, value in shown])
    axes.axvline(COPY_BAR, linestyle="--")
    axes.invert_yaxis()
    axes.set_title(title)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return path


def svg(shown: Sequence[tuple[str, float]], title: str) -> str:
    """Horizontal bars, with a line at what is asked for."""
    height = 50 + len(shown) * (BAR + GAP)
    scale = (WIDTH - LEFT - 60) / max(1.0, *(value for _, value in shown)) if shown else 1.0
    bar = LEFT + COPY_BAR * scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for index, (name, value) in enumerate(shown):
        top = 34 + index * (BAR + GAP)
        colour = "#4878a8" if value >= COPY_BAR else "#c05040"
        lines += [
            f'<text x="{LEFT - 6}" y="{top + BAR - 3}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{value * scale:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{LEFT + value * scale + 4:.1f}" y="{top + BAR - 3}">{value:.2f}</text>',
        ]
    lines.append(f'<line x1="{bar:.1f}" y1="30" x2="{bar:.1f}" y2="{height - 8}" stroke="black" stroke-dasharray="4"/>')
    return "\n".join([*lines, "</svg>", ""])
