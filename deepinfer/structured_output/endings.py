"""Whether a text that fits a JSON schema can end, where schemas lead back to themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Part = Mapping[str, Any]
_ITEMS = {"items", "prefixItems"}


def endless_place(parts: Sequence[tuple[str, Part]], leads_to: Callable[[Part], Iterable[object]]) -> str | None:
    """Where a schema leads back to itself without end; None where some value of the first one does end.

    parts: the schemas reached from the first, by their places; each is itself and no copy. leads_to: the schemas that
    one names, what it refers to among them. One of which nothing is known here counts as one that can end.
    """
    places = {id(part): place for place, part in reversed(parts)}
    nodes = {id(part): part for _, part in parts}
    named_by: dict[int, set[int]] = {number: set() for number in nodes}
    for number, part in nodes.items():
        for child in leads_to(part):
            if id(child) in nodes:
                named_by[id(child)].add(number)
    endless, pending = set(nodes), set(nodes)

    def ends(one: object) -> bool:
        return id(one) not in endless

    while pending:
        ended = {number for number in pending if _can_end(nodes[number], leads_to, ends)}
        endless -= ended
        pending = {number for one in ended for number in named_by[one]} & endless
    part, passed = parts[0][1], set[int]()
    if id(part) not in endless:
        return None
    while id(part) not in passed:
        passed.add(id(part))
        part = next(nodes[id(child)] for child in leads_to(part) if id(child) in endless)
    return places[id(part)]


def _can_end(part: Part, leads_to: Callable[[Part], Iterable[object]], ends: Callable[[object], bool]) -> bool:
    if "enum" in part or "const" in part:
        return True
    if "$ref" in part or "allOf" in part:
        return all(map(ends, leads_to(part)))
    if "anyOf" in part or "oneOf" in part:
        return any(map(ends, leads_to(part)))
    kinds = part.get("type", "object" if "properties" in part else "array" if _ITEMS & part.keys() else "any")
    return any(
        _object_can_end(part, ends) if kind == "object" else _array_can_end(part, ends) if kind == "array" else True
        for kind in (kinds if isinstance(kinds, list) else [kinds])
    )


def _object_can_end(part: Part, ends: Callable[[object], bool]) -> bool:
    properties, patterns = (_mapping(part.get(word)) for word in ("properties", "patternProperties"))
    if not all(ends(properties[name]) for name in part.get("required", ()) if name in properties):
        return False
    others = [part[word] for word in ("additionalProperties", "unevaluatedProperties") if part.get(word)]
    others += patterns.values()  # of these there can be any number
    least = part.get("minProperties", 0)
    least = least if others else min(least, len(properties))
    return any(map(ends, others)) or sum(map(ends, properties.values())) >= least


def _array_can_end(part: Part, ends: Callable[[object], bool]) -> bool:
    first = part["prefixItems"] if isinstance(part.get("prefixItems"), list) else []
    least = part.get("minItems", 0)
    rest = [part.get("items", part.get("unevaluatedItems"))] if least > len(first) else []
    return all(map(ends, [*first[:least], *rest]))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
