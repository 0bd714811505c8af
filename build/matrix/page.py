"""docs/matrix.md, for readers: `python -m build.matrix.page [--check]`. Everything in it follows from matrix.yaml."""

from __future__ import annotations

import collections.abc
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from build.cache import REPOSITORY
from build.ci.jobs import bases_of, room_gb, runner_labels
from build.matrix.constraints import wanted
from build.matrix.formats import EXPECT_FACTS, fact_label
from build.matrix.generated import run_generator
from build.matrix.load import load_matrix
from build.matrix.model import Beyond, Component, Document, Matrix, Replica, Source, Target, Toolchain
from build.matrix.shape import Hint, fields_of, take_apart
from build.plan import BaseKind, Cell, TargetPlan, make_plan
from build.sources import header_digests

PAGE = REPOSITORY / "docs" / "matrix.md"
HEAD = """# What is built

Generated from matrix.yaml by `python -m build.matrix.page`; do not edit. `./run plan` says the same of the bases
that are here, with what is cached.
"""
KEYS_HEAD = """
## Keys of matrix.yaml

The same as a JSON Schema for editors: [matrix.schema.json](matrix.schema.json). Tags, anchors, aliases, duplicate and
unknown keys are refused; a version is always in quotes. Paths are relative to the repository and stay in it.
"""


def make_page(matrix: Matrix) -> str:
    """The page's text."""
    parts = [HEAD, "\n## Components\n\n", *_components(matrix)]
    parts += ["\n## Images\n\n", *_images(matrix)]
    for target in matrix.targets.values():
        parts += [f"\n### {target.name}: {_cell(target.title)}\n\n", *_target(matrix, target)]
    parts += [KEYS_HEAD]
    for cls in (Document, Component, Source, Beyond, Target, Replica, Toolchain):
        parts += [
            f"\n### {'The file' if cls is Document else cls.__name__}\n\n{(cls.__doc__ or '').strip()}\n\n",
            *_keys(cls),
        ]
    return "".join(parts)


def page_text() -> str:
    """The text for the repository's own matrix."""
    return make_page(load_matrix())


def _components(matrix: Matrix) -> Iterator[str]:
    rows = [
        (f"`{name}`", one.title, one.version, one.kind, _source(one.source), _requires(one), one.licence)
        for name, one in matrix.components.items()
    ]
    yield from _table(("name", "what", "version", "kind", "source", "needs", "licence"), rows)
    passed = [(one, fact, beyond) for one in matrix.components.values() for fact, beyond in one.beyond.items()]
    if passed:
        yield "\nWhere this goes past what upstream states:\n\n"
    for one, fact, beyond in passed:
        allowed, stated = wanted(fact, one.requires[fact]), wanted(fact, beyond.stated)
        yield f"- {_cell(one.title)}: upstream states {stated}, here {allowed} will do: {_cell(beyond.reason)}.\n"


def _images(matrix: Matrix) -> Iterator[str]:
    rows = []
    for target in matrix.targets.values():
        for kind in _bases(target):
            plan = _expected(matrix, target, kind)
            cells = {cell.component.name: cell for cell in plan.cells}
            marks = [_mark(cells.get(name)) for name in matrix.components]
            rows.append((f"`{target.name}`", kind, *marks))
    yield from _table(("image", "base", *(one.title for one in matrix.components.values())), rows)
    yield "\nA version: built; no: cannot be built there, for the reason given below; -: not part of it;\n"
    yield "depends: known once the base, or the machine, was inspected.\n"


def _mark(cell: Cell | None) -> str:
    """What a cell of the table says; None: it is no part of the target."""
    if cell is None:
        return "-"
    if cell.undecided:
        return "depends"
    return cell.component.version if cell.status != "unsupported" else "no"


def _target(matrix: Matrix, target: Target) -> Iterator[str]:
    if target.vendor is not None:
        yield f"Vendor's base: `{target.vendor}` ({target.vendor_gb:g} GB).\n"
    if target.replica is not None:
        yield f"Replica: Debian {target.replica.suite} and the wheels of `{target.replica.lock}`.\n"
    if target.toolchain is not None:
        chain = target.toolchain
        yield f"Run-time tool chain: `{chain.lock}`, where the base has no nvcc >= {chain.minimum}.\n"
    for kind in bases_of(target):
        labels = " ".join(f"`{label}`" for label in runner_labels(target, kind))
        yield f"Continuous integration, {kind}: {labels}, {room_gb(target, kind):.0f} GB.\n"
    if target.expect:
        kinds = _bases(target)
        plans = [_expected(matrix, target, kind) for kind in kinds]
        rows = [
            (fact_label(fact), *(plan.facts.get(fact) or "not stated" for plan in plans))
            for fact in EXPECT_FACTS
            if any(plan.facts.get(fact) for plan in plans)
        ]
        yield "\n"
        yield from _table(("expected", *kinds), rows)
        yield from _reasons(plans)


def _reasons(plans: Iterable[TargetPlan]) -> Iterator[str]:
    lines: dict[str, None] = {}
    for plan in plans:
        for cell in plan.cells:
            said = [cell.reason] if cell.status == "unsupported" else cell.notes
            lines.update((f"- {_cell(cell.component.title)}: {_cell(text)}.\n", None) for text in said)
    if lines:
        yield "\n"
        yield from lines


def _bases(target: Target) -> list[BaseKind]:
    return ["host"] if target.kind == "host" else [*bases_of(target)]


def _expected(matrix: Matrix, target: Target, kind: BaseKind) -> TargetPlan:
    return make_plan(
        matrix,
        target,
        target.components,
        inspection=None,
        base_kind=kind,
        sources=header_digests(REPOSITORY),
        cached=lambda key: False,
    )


def _source(source: Source) -> str:
    if source.pypi is not None:
        return f"PyPI `{source.pypi}`, sha256 `{(source.sha256 or '')[:12]}…`"
    if source.git is not None:
        return f"`{source.git}` at `{(source.commit or '')[:12]}`"
    return ", ".join(f"`{part}`" for part in source.include or (source.path or ".",))


def _requires(component: Component) -> str:
    return "; ".join(wanted(fact, specifier) for fact, specifier in component.requires.items()) or "nothing"


def _keys(cls: type) -> Iterator[str]:
    rows = []
    for name, (hint, required) in fields_of(cls).items():
        if not hint.from_key:
            rows.append((f"`{name}`", _type(hint), "yes" if required else "", hint.doc))
    yield from _table(("key", "value", "required", "meaning"), rows)


def _type(hint: Hint) -> str:
    base, origin = hint.base, get_origin(hint.base)
    if dataclasses.is_dataclass(base):
        return str(base.__name__)  # type: ignore[union-attr]
    if origin is tuple:
        return f"list, each {_type(take_apart(get_args(base)[0]))}"
    if origin is collections.abc.Mapping:
        names, values = (take_apart(one) for one in get_args(base))
        return f"{'facts' if names.format and names.format.choices else 'names'}, each with {_type(values)}"
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in get_args(base))
    if hint.format is not None:
        return hint.format.what
    return {float: "a number", bool: "`true` or `false`"}[base]


def _cell(text: Any) -> str:
    """Text of the matrix as plain text in Markdown, also in a table."""
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(_cell(cell) for cell in head)} |\n|{'---|' * len(head)}\n"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |\n"


if __name__ == "__main__":
    sys.exit(run_generator(PAGE, page_text, "build.matrix.page", sys.argv[1:]))
