"""JSON schemas whose every word is kept: xgrammar passes over some keywords, and the text would not fit the schema.

A keyword that JSON Schema does not know is a note, as it says, and passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from deepinfer.structured_output.endings import endless_place
from deepinfer.structured_output.regex import checked_string_pattern

DEEPEST = 100
"""Levels of a schema; xgrammar's time grows with their third power."""
LARGEST_DIVISOR = 1024
"""xgrammar passes over a larger multipleOf."""
_INT64 = range(-(2**63), 2**63)
"""Other whole numbers become fractions in xgrammar, the nearest of 53 bits."""
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LARGEST_COUNT = 2**31 - 1
_OF_KIND = {
    "number": (*_LIMITS, "multipleOf"),
    "string": ("minLength", "maxLength", "pattern"),
    "array": ("minItems", "maxItems"),
    "object": ("required", "minProperties", "maxProperties", "patternProperties", "propertyNames"),
}
_SHOWS_KIND = {"array": ("items", "prefixItems"), "object": ("properties",)}
_EMPTY: tuple[tuple[object, tuple[str, ...], tuple[str, ...]], ...] = (
    ([], ("minItems", "maxItems", "uniqueItems"), ("items", "prefixItems", "unevaluatedItems")),
    (
        {}, ("minProperties", "maxProperties"),
        ("additionalProperties", "properties", "patternProperties", "propertyNames", "unevaluatedProperties"),
    ),
)  # fmt: skip
"""Words by which xgrammar takes a list or an object for an empty one, if nothing says what is in it."""
_NEVER = (
    "dependentRequired", "dependentSchemas", "dependencies", "if", "not", "contains", "uniqueItems",
    "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_ALONE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_ASSERTIONS = {
    *(word for words in (*_OF_KIND.values(), *_SHOWS_KIND.values()) for word in words), *_NEVER, *_ALONE,
    "type", "additionalProperties", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
_FORMATS = (
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference",
    "uri-template", "uuid", "json-pointer", "relative-json-pointer",
)  # fmt: skip
"""Those that are kept; JSON Schema takes others for notes."""
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip


def check_schema(schema: object) -> None:
    """Refuse a schema of which something would not be kept. Its other mistakes are left to xgrammar.

    Raises:
        ValueError: naming the keyword, where it is as a JSON pointer, and why; or where values have no end.
    """
    reached = list(_reached(schema))
    for path, part in reached:
        for keyword, why in _problems(part):
            raise ValueError(f"{keyword!r} at {path} cannot be enforced: {why}")
    place = endless_place(reached, lambda part: _led_to(schema, part)) if reached else None
    if place:
        raise ValueError(f"no text matches it: what is at {place} leads back to itself without end")


def name_alternatives(schema: object) -> None:
    """Write anyOf for oneOf, which counts as it: xgrammar would say so on stderr each time. It changes the schema."""
    reached = list(_reached(schema))
    if not any("/oneOf/" in str(part.get("$ref")) for _, part in reached):
        for _, part in reached:
            if "oneOf" in part and "anyOf" not in part:
                part["anyOf"] = part.pop("oneOf")


def spell_patterns(schema: object) -> None:
    """Write the patterns as xgrammar reads them rightly. It changes the schema, which `check_schema` has passed.

    Raises:
        ValueError: two patterns of one object say the same.
    """
    for _, part in list(_reached(schema)):
        for owner in (part, part.get("propertyNames")):
            if isinstance(owner, dict) and isinstance(owner.get("pattern"), str):
                owner["pattern"] = checked_string_pattern(owner["pattern"])
        if isinstance(patterns := part.get("patternProperties"), dict):
            part["patternProperties"] = {checked_string_pattern(one): inner for one, inner in patterns.items()}
            if len(part["patternProperties"]) < len(patterns):
                raise ValueError("two of the names of 'patternProperties' are the same expression")


def _reached(schema: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas in a schema that say something, by where they are as a JSON pointer. ValueError: it is too deep."""
    todo: list[tuple[str, object, int]] = [("#", schema, 0)]
    seen: set[str] = set()
    while todo:
        path, part, depth = todo.pop()
        if path in seen or not isinstance(part, dict):
            continue
        seen.add(path)
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        yield path, part
        todo += [(f"{path}/{name}", one, depth + 1) for name, one in _parts(part)]
        reference = part.get("$ref")
        if isinstance(reference, str):
            todo.append((reference, _pointed(schema, reference), depth + 1))


def _problems(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What of one level is not kept: keyword and reason."""
    for word in _NEVER:
        if schema.get(word, False) is not False:
            yield word, "a grammar cannot express it"
    yield from _misspelled(schema)
    yield from _combined(schema)
    yield from _without_type(schema)
    yield from _objects(schema)
    yield from _values(schema)
    if "multipleOf" in schema:
        if schema.get("type") != "integer" or not isinstance(schema["multipleOf"], int):
            yield "multipleOf", "it has to be a whole number beside the type integer"
        elif schema["multipleOf"] > LARGEST_DIVISOR:
            yield "multipleOf", f"it may be {LARGEST_DIVISOR} at most"
        if not schema.keys().isdisjoint(_LIMITS):
            yield "multipleOf", "a limit stands beside it"
    if "pattern" in schema:
        try:
            checked_string_pattern(schema["pattern"])
        except ValueError as problem:
            yield "pattern", str(problem)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        yield "$ref", f"{reference!r} does not point into this schema, as #/$defs/name does"


def _misspelled(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Values that are none of their keyword's: xgrammar takes some for others, and of some says not where they are."""
    for word in _COUNTS:
        count = schema.get(word, 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _LARGEST_COUNT:
            yield word, f"it has to be a whole number between 0 and {_LARGEST_COUNT}"
    for word in ("minContains", "maxContains"):
        if word in schema:
            yield word, "it belongs to 'contains', which a grammar cannot express, and says nothing alone; leave it out"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield "required", "it has to be a list of names, in the object whose 'properties' has them"
    for word in ("pattern", "format"):
        if not isinstance(schema.get(word, ""), str):
            yield word, "it has to be a text"


def _values(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Alternatives of which there are none, and numbers that would become others."""
    for word in ("type", "anyOf", "oneOf", "allOf", "enum"):
        if schema.get(word) == []:
            yield word, "it is empty; name one at least, or leave it out"
    for word in ("enum", "const", *_LIMITS):
        if word in schema and not all(one in _INT64 for one in _wholes(schema[word])):
            yield word, "a whole number in it takes more than 64 bits"


def _wholes(value: object) -> Iterator[int]:
    """The whole numbers in a JSON value."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _wholes(one)


def _combined(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for word in filter(schema.__contains__, _ALONE):
        others = sorted(_ASSERTIONS & set(schema) - {word})
        if word in ("enum", "const") and others == ["type"]:
            values = schema["enum"] if word == "enum" else [schema["const"]]
            if not (isinstance(values, list) and all(_is_of(value, schema["type"]) for value in values)):
                yield word, "a value is not of the type beside it"
        elif others:
            yield word, f"{others[0]!r} stands beside it; put that into each alternative or definition"
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        yield "allOf", "it has more than one schema; write them as one"
    lengths = [word for word in ("pattern", "minLength", "maxLength") if word in schema]
    if schema.get("format") in _FORMATS and lengths:
        yield lengths[0], "a format stands beside it"
    if "pattern" in schema and len(lengths) > 1:
        yield lengths[1], "a pattern stands beside it; say the length in the pattern"


def _without_type(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, words in _OF_KIND.items():
        shown = any(word in schema for word in ("type", *_SHOWS_KIND.get(kind, ())))
        yield from ((word, f'"type": "{kind}" is missing beside it') for word in words if word in schema and not shown)
    for value, words, contents in _EMPTY:
        if _is_of(value, schema.get("type")) and schema.keys().isdisjoint(contents):
            yield from (
                (word, f"{contents[0]!r} is missing beside it; {{}} is anything") for word in words if word in schema
            )
    if schema.get("format") in _FORMATS and "type" not in schema:
        yield "format", '"type": "string" is missing beside it'


def _objects(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    properties = schema.get("properties", {})
    if isinstance(properties, dict):
        missing = [name for name in schema.get("required", []) if name not in properties]
        if missing:
            yield "required", f"properties does not have {missing[0]!r}"
    for word in ("patternProperties", "propertyNames"):
        if word in schema and properties:
            yield word, "properties stands beside it"
    if "propertyNames" in schema and "patternProperties" in schema:
        yield "propertyNames", "patternProperties stands beside it"
    least = schema.get("minProperties", 0)
    closed = properties and schema.get("additionalProperties", False) is False
    if least > 1 and not closed:
        yield "minProperties", "properties without names could be one, twice"
    if "patternProperties" in schema and schema.get("additionalProperties", False) is not False:
        yield "additionalProperties", "patternProperties stands beside it"
    patterns = schema.get("patternProperties")
    for pattern in patterns if isinstance(patterns, dict) else ():
        try:
            checked_string_pattern(pattern)
        except ValueError as problem:
            yield "patternProperties", str(problem)


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas that a schema is made of, by their path; definitions count where something refers to them."""
    if isinstance(schema.get("propertyNames"), dict):
        yield "propertyNames", {"type": "string", **schema["propertyNames"]}
    for word in ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"):
        if word in schema:
            yield word, schema[word]
    for word in ("properties", "patternProperties"):
        if isinstance(schema.get(word), dict):
            yield from ((f"{word}/{_escaped(name)}", one) for name, one in schema[word].items())
    for word in ("prefixItems", "anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list):
            yield from ((f"{word}/{index}", one) for index, one in enumerate(schema[word]))


def _led_to(schema: object, part: Mapping[str, Any]) -> Iterator[object]:
    """The schemas that one in a schema names: its parts, and what it refers to."""
    yield from (one for _, one in _parts(part))
    if isinstance(part.get("$ref"), str):
        yield _pointed(schema, part["$ref"])


def _pointed(schema: object, reference: str) -> object:
    """What a reference points to; None where there is nothing."""
    found: object = schema
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _is_of(value: object, kinds: object) -> bool:
    names = kinds if isinstance(kinds, list) else [kinds]
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(name, str) and isinstance(value, _TYPES.get(name, ())) for name in names)
