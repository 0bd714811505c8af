"""Nodes to dataclasses, driven by the dataclasses' own annotations, with every mismatch noted.

A value that is wrong is replaced by an empty one, so that the rest can still be checked; `Problems.check` keeps the
checks that follow quiet about a key that is wrong already.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from build.matrix.formats import Format
from build.matrix.model import FromKey
from build.matrix.nodes import KINDS, Mapping, Node, Scalar, Sequence
from build.matrix.problems import Problems, Where, near, shown


@dataclasses.dataclass(frozen=True)
class Hint:
    """An annotation taken apart: the bare type, its format and its description."""

    base: Any
    format: Format | None = None
    doc: str = ""
    from_key: bool = False


@functools.lru_cache(maxsize=256)
def take_apart(annotation: Any) -> Hint:
    """Split `Annotated[T | None, Format, "doc"]` into its parts; `T | None` counts as T: null is never written."""
    found: Format | None = None
    doc, from_key = "", False
    while get_origin(annotation) is Annotated:
        annotation, *extras = get_args(annotation)
        for extra in extras:
            if isinstance(extra, Format):
                found = extra
            elif isinstance(extra, str):
                doc = doc or extra
            elif extra is FromKey:
                from_key = True
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = [arg for arg in get_args(annotation) if arg is not type(None)]
    return Hint(annotation, found, doc, from_key)


@functools.cache
def fields_of(cls: type) -> dict[str, tuple[Hint, bool]]:
    """The keys of a dataclass: name -> (hint, required). The one that holds the entry's own name included."""
    hints = get_type_hints(cls, include_extras=True)
    required = {
        item.name
        for item in dataclasses.fields(cls)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    return {name: (take_apart(hint), name in required) for name, hint in hints.items()}


def build(cls: type, node: Node | None, where: Where, problems: Problems, name: str | None = None) -> Any:
    """An instance of the dataclass `cls` from a mapping. name: the key under which the entry stands."""
    items: dict[str, Node] = {}
    if isinstance(node, Mapping):
        items = node.items
    else:
        what = "nothing" if node is None else _describe(node)
        problems.add(where, f"must be a mapping of keys to values, not {what}", line=node.line if node else None)
    known = fields_of(cls)
    keys = [key for key, (hint, _) in known.items() if not hint.from_key]
    for key in items:
        if key not in keys:
            problems.add((*where, key), f"unknown key{near(key, keys)}")
    values: dict[str, Any] = {}
    for key, (hint, required) in known.items():
        if hint.from_key:
            values[key] = name
        elif key in items:
            values[key] = convert(hint, items[key], (*where, key), problems)
        elif required:
            if isinstance(node, Mapping):
                problems.add((*where, key), f"missing{': ' + hint.doc if hint.doc else ''}")
            values[key] = _empty(hint.base)
    return cls(**values)


def convert(hint: Hint, node: Node, where: Where, problems: Problems) -> Any:
    """A value of the hinted type from a node; an empty value and a noted problem if it does not fit."""
    base = hint.base
    origin = get_origin(base)
    if dataclasses.is_dataclass(base):
        return build(base, node, where, problems)  # type: ignore[arg-type]
    if origin is tuple:
        return _list(take_apart(get_args(base)[0]), node, where, problems)
    if origin is collections.abc.Mapping:
        names, value = get_args(base)
        return _mapping(take_apart(names), take_apart(value), node, where, problems)
    if not isinstance(node, Scalar):
        problems.add(where, f"must be a single value, not {_describe(node)}", line=node.line)
        return _empty(base)
    if node.kind == "alias":
        return _empty(base)
    return _scalar(hint, node, where, problems)


def _list(item: Hint, node: Node, where: Where, problems: Problems) -> tuple[Any, ...]:
    if not isinstance(node, Sequence):
        problems.add(where, f"must be a list, not {_describe(node)}", line=node.line)
        return ()
    values = [convert(item, one, (*where, index), problems) for index, one in enumerate(node.items)]
    first: dict[Any, int] = {}
    for index, value in enumerate(values):
        if first.setdefault(value, index) != index:
            problems.check((*where, index), False, f"{shown(value)} stands in this list twice: remove one")
    return tuple(values)


def _mapping(name: Hint, value: Hint, node: Node, where: Where, problems: Problems) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        problems.add(where, f"must be a mapping of names to values, not {_describe(node)}", line=node.line)
        return {}
    names = name.format
    values: dict[str, Any] = {}
    for key, child in node.items.items():
        complaint = names.complaint(key) if names else ""
        if names and complaint:
            hint = near(key, names.choices) if names.choices else ""
            problems.add((*where, key), "unknown fact" + hint if names.choices else f"{shown(key)} {complaint}")
        if dataclasses.is_dataclass(value.base):
            values[key] = build(value.base, child, (*where, key), problems, name=key)  # type: ignore[arg-type]
        else:
            values[key] = convert(value, child, (*where, key), problems)
    return values


def _scalar(hint: Hint, node: Scalar, where: Where, problems: Problems) -> Any:
    base, complaint = hint.base, ""
    if base is bool:
        if node.kind == "bool" and node.text in ("true", "false"):
            return node.text == "true"
        complaint = f"must be true or false, not {shown(node.text)}"
    elif base is float:
        number = _number(node)
        if number is not None and 0 < number <= 10_000:
            return number
        complaint = f"must be a number above 0, 10000 at most, not {shown(node.text)}"
    elif get_origin(base) is Literal:
        choices = get_args(base)
        for choice in choices:
            if node.text == str(choice) and node.kind == type(choice).__name__:
                return choice
        complaint = f"{shown(node.text)} is not known{near(node.text, [str(choice) for choice in choices])}"
    elif node.kind != "str":
        kind = KINDS.get(node.kind, node.kind)
        complaint = (
            "has no value: give one or leave the key out"
            if node.kind == "null"
            else f'{node.text[:40]} is a {kind} to YAML where text is wanted: write "{node.text[:40]}" in quotes'
        )
    else:
        complaint = hint.format.complaint(node.text) if hint.format else ""
        if not complaint:
            return node.text
        complaint = f"{shown(node.text)} {complaint}"
    problems.add(where, complaint, line=node.line)
    return _empty(base)


def _number(node: Scalar) -> float | None:
    if node.kind not in ("int", "float"):
        return None
    try:
        number = float(node.text)
    except ValueError:  # YAML's octal, hexadecimal and sexagesimal numbers
        return None
    return number if math.isfinite(number) else None


def _describe(node: Node) -> str:
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    return "nothing" if node.kind == "null" else f"the text {shown(node.text)}"


def _empty(base: Any) -> Any:
    origin = get_origin(base)
    if dataclasses.is_dataclass(base):
        return base(**{name: _empty(hint.base) for name, (hint, required) in fields_of(base).items() if required})  # type: ignore[arg-type, operator]
    if origin is Literal:
        return get_args(base)[0]
    if origin is tuple:
        return ()
    if origin is collections.abc.Mapping:
        return {}
    return {str: "", float: 0.0, bool: False}[base]
