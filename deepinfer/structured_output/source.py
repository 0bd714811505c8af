"""A structure as the text that xgrammar compiles. It is judged before: its size, and what the library would lose."""

from __future__ import annotations

import json
from collections.abc import Iterator

from deepinfer.errors import kind_of
from deepinfer.json_text import strict_json
from deepinfer.sampling.params import Structure
from deepinfer.structured_output.regex import checked_regex
from deepinfer.structured_output.schema import check_schema, name_alternatives, spell_patterns
from deepinfer.structured_output.size import LONGEST_GRAMMAR, size_of

MOST_ENTRIES = 2000
"""Texts of a choice; entries of a list or an object of a JSON schema: 2 s for as many properties."""


def text_of(structure: Structure) -> str:
    """A structure as text, judged as far as that goes without the library.

    Raises:
        ValueError: it is too large, or something in it would not be kept.
    """
    grammar = structure.grammar
    if structure.kind == "json":
        return _schema_text(grammar)
    if isinstance(grammar, str):
        _check_size(size_of(grammar, ebnf=structure.kind == "ebnf"), 0)
        return checked_regex(grammar) if structure.kind == "regex" else grammar
    _check_size(sum(map(len, grammar)), len(grammar))
    return "root ::= " + " | ".join(map(_literal, grammar))


def _schema_text(grammar: object) -> str:
    if isinstance(grammar, str):
        _check_size(len(grammar), 0)
        schema = strict_json(grammar)
        text = json.dumps(schema, allow_nan=False)
    else:
        text = json.dumps(grammar, allow_nan=False)  # of a schema that holds itself a ValueError
        if name := next(_names_that_are_no_text(grammar), None):
            raise ValueError(f"a name in it is {name}; names are texts")
        schema = json.loads(text)
    _check_size(len(text), max(_entries(schema), default=0))
    _check_size(sum(map(size_of, _patterns(schema))), 0)
    check_schema(schema)
    name_alternatives(schema)
    spell_patterns(schema)
    return json.dumps(schema)


def _check_size(characters: int, entries: int) -> None:
    if characters > LONGEST_GRAMMAR:
        raise ValueError(
            f"it may have {LONGEST_GRAMMAR} characters, with what is repeated written out, and has {characters}; ask "
            "for less in one request"
        )
    if entries > MOST_ENTRIES:
        raise ValueError(
            f"a choice, a list or an object may have {MOST_ENTRIES} entries, and one has {entries}; ask for less in "
            "one request, or write them as an expression"
        )


def _patterns(value: object) -> Iterator[str]:
    """The expressions in a schema, at most."""
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        if isinstance(value.get("patternProperties"), dict):
            yield from value["patternProperties"]
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _patterns(one)


def _entries(value: object) -> Iterator[int]:
    """How many entries each list and object of a JSON value has."""
    if isinstance(value, dict | list):
        yield len(value)
        for one in value.values() if isinstance(value, dict) else value:
            yield from _entries(one)


def _names_that_are_no_text(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (kind_of(name) for name in value if not isinstance(name, str))
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _names_that_are_no_text(one)


def _literal(text: str) -> str:
    """A text as EBNF writes it."""
    text.encode()  # half a surrogate pair is no text: UnicodeEncodeError is a ValueError
    return '"' + "".join(letter if letter.isalnum() else f"\\U{ord(letter):08x}" for letter in text) + '"'
