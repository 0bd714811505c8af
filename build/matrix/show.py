"""The plan for people, as a table, and for programs, as JSON."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from build.plan import Cell, TargetPlan

STYLES = {"cached": "green", "build": "yellow", "unsupported": "dim"}
WIDE = 100
"""Columns from which on a row says everything; with fewer, remarks stand under it and keys are left out."""
SITE = "/opt/deepinfer/site"


def as_table(plans: Sequence[TargetPlan], *, width: int | None = None) -> str:
    """One table a target: cell, version, status, key, and why or what is installed. Coloured only on a terminal.

    Args:
        width: columns; by default the terminal's, and 140 where there is none.
    """
    columns = width or shutil.get_terminal_size((140, 24)).columns
    terminal = sys.stdout.isatty()
    out = io.StringIO()
    console = Console(
        file=out, width=max(columns, 40), color_system="auto" if terminal else None, force_terminal=terminal
    )
    console.print(_tables(plans, narrow=columns < WIDE))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip()


def as_json(plans: Sequence[TargetPlan]) -> dict[str, Any]:
    """What `plan --json` prints: the plans, and how many cells have which status."""
    cells = [cell for plan in plans for cell in plan.cells]
    return {
        "schema": 1,
        "plans": [plan.to_json() for plan in plans],
        "cells": {status: sum(cell.status == status for cell in cells) for status in STYLES},
    }


def _tables(plans: Sequence[TargetPlan], *, narrow: bool) -> RenderableType:
    parts: list[RenderableType] = []
    for plan in plans:
        parts += [*(_rows(plan) if narrow else [_table(plan)]), *_remarks(plan), Text("")]
    return Group(*parts)


def _table(plan: TargetPlan) -> Table:
    table = Table(title=Text(headline(plan)), title_justify="left", show_edge=False, pad_edge=False)
    for heading in ("cell", "version", "status", "key"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what follows", overflow="fold", ratio=1)
    for cell in plan.cells:
        status = f"{cell.status} (expected)" if cell.expected else cell.status
        table.add_row(
            Text(cell.name),
            Text(cell.component.version),
            Text(status, style=STYLES[cell.status]),
            Text(cell.key[:12] or "-"),
            Text("\n".join(consequences(cell, plan))),
        )
    return table


def _rows(plan: TargetPlan) -> list[RenderableType]:
    """As `_table`, for a narrow terminal."""
    names = max(len(cell.name) for cell in plan.cells)
    versions = max(len(cell.component.version) for cell in plan.cells)
    rows: list[RenderableType] = [Text(headline(plan))]
    for cell in plan.cells:
        row = Text(f"{cell.name:<{names}}  {cell.component.version:<{versions}}  ")
        rows.append(row.append(cell.status, style=STYLES[cell.status]))
        rows += [Padding(Text(line), (0, 0, 0, 4)) for line in consequences(cell, plan)]
    return rows


def headline(plan: TargetPlan) -> str:
    """`flagtree on its replica, torch 2.11.0+cu130, CUDA 13.0, gcc 14.2.0: image 1a2b3c4d5e6f`."""
    place = "on this machine" if plan.base_kind == "host" else f"on its {plan.base_kind}"
    facts = plan.facts
    parts = [f"torch {facts.get('torch') or 'none'}", f"CUDA {facts.get('cuda') or 'none'}"]
    parts += [f"{name} {facts[name]}" for name in ("python", "gcc") if facts.get(name)]
    text = f"{plan.target.name} {place}" + (f", {', '.join(parts)}" if facts else "")
    if plan.inspection is None:
        return f"{text} (expected, not inspected)"
    return f"{text}: {'image' if plan.target.kind == 'image' else 'prefix'} {plan.image_key[:12]}"


def consequences(cell: Cell, plan: TargetPlan) -> list[str]:
    """Lines on a cell: why it is unsupported, or what is installed where, and its notes."""
    if cell.status == "unsupported":
        return [cell.reason]
    return [_installed(cell, plan), *cell.notes]


def _installed(cell: Cell, plan: TargetPlan) -> str:
    component = cell.component
    if component.kind == "overlay":
        source = component.source
        return f"the library of {source.pypi} {source.version}, after every other install"
    if component.kind == "extension":
        return f"{component.module}, a shared object inside the engine's own package"
    place = SITE if plan.target.kind == "image" else "the prefix's site folder"
    tail = "; needs nvcc and a host compiler at run time" if component.toolchain else ""
    return f"{component.module} in {place}{tail}"


def _remarks(plan: TargetPlan) -> list[Text]:
    remarks = []
    if plan.inspection is None:
        remarks.append("Not inspected: keys, and what is cached, are known once the base was inspected.")
    if not plan.complete:
        left_out = sorted(set(plan.target.components) - {cell.component.name for cell in plan.cells})
        remarks.append(f"Left out by the selection: {', '.join(left_out)}. No image is made of a part.")
    return [Text(remark, style="dim") for remark in remarks]
