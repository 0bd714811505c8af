"""docs/matrix.schema.json, for editors and other programs: `python -m build.matrix.schema [--check]`.

Made from the same annotations as the loader, so that the two cannot disagree about keys, types and formats. What a
schema cannot say (files that exist, names that must be known, versions that must agree) only the loader checks.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import sys
from typing import Any, Literal, get_args, get_origin

from build.cache import REPOSITORY
from build.matrix.generated import run_generator
from build.matrix.load import SOURCE_KEYS, SOURCE_OPTIONS
from build.matrix.model import Document, Source
from build.matrix.shape import Hint, fields_of, take_apart

SCHEMA = REPOSITORY / "docs" / "matrix.schema.json"


def make_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of matrix.yaml."""
    definitions: dict[str, Any] = {}
    root = _object(Document, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "matrix.yaml",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """The file's text."""
    return json.dumps(make_schema(), indent=2, ensure_ascii=True) + "\n"


def _object(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    keys = {name: entry for name, entry in fields_of(cls).items() if not entry[0].from_key}
    made: dict[str, Any] = {
        "type": "object",
        "description": (cls.__doc__ or "").strip(),
        "additionalProperties": False,
        "properties": {name: _value(hint, definitions) for name, (hint, _) in keys.items()},
    }
    required = [name for name, (_, needed) in keys.items() if needed]
    if required:
        made["required"] = required
    if cls is Source:
        made["oneOf"] = [
            {
                "required": [kind, *SOURCE_KEYS[kind]],
                "properties": {key: False for key in keys if key not in (kind, *allowed)},
            }
            for kind, allowed in SOURCE_OPTIONS.items()
        ]
    return made


def _value(hint: Hint, definitions: dict[str, Any]) -> dict[str, Any]:
    made = _type(hint, definitions)
    return {"description": hint.doc, **made} if hint.doc else made


def _type(hint: Hint, definitions: dict[str, Any]) -> dict[str, Any]:
    base, origin = hint.base, get_origin(hint.base)
    if dataclasses.is_dataclass(base):
        name = base.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(base, definitions)  # type: ignore[arg-type]
        return {"$ref": f"#/$defs/{name}"}
    if origin is tuple:
        return {"type": "array", "uniqueItems": True, "items": _value(take_apart(get_args(base)[0]), definitions)}
    if origin is collections.abc.Mapping:
        names, values = (take_apart(one) for one in get_args(base))
        return {
            "type": "object",
            "propertyNames": _type(names, definitions),
            "additionalProperties": _value(values, definitions),
        }
    if origin is Literal:
        return {"enum": list(get_args(base))}
    if base is bool:
        return {"type": "boolean"}
    if base is float:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 10000}
    made: dict[str, Any] = {"type": "string"}
    if hint.format is not None and hint.format.choices:
        made["enum"] = list(hint.format.choices)
    elif hint.format is not None:
        made["pattern"] = f"^(?:{hint.format.pattern})$"
    return made


if __name__ == "__main__":
    sys.exit(run_generator(SCHEMA, schema_text, "build.matrix.schema", sys.argv[1:]))
