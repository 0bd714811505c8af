"""JSON schemas: what would not be kept is refused by name, and what passes is kept."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from deepinfer.sampling import Structure
from deepinfer.structured_output import GrammarCompiler
from deepinfer.structured_output.schema import check_schema

INTEGER = {"type": "integer"}


class Bytes:
    """A vocabulary of the bytes; token 256 ends."""

    special_ids = frozenset({256})

    def bytes_of(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    pytest.importorskip("xgrammar", reason="xgrammar is absent: structured output cannot be tried")
    return GrammarCompiler(Bytes(), 257, [256])


def fits(compiler: GrammarCompiler, schema: Any, value: Any) -> bool:
    """Whether the grammar of a schema takes a value's text to its end."""
    matcher = compiler.compile(Structure("json", json.dumps(schema))).matcher()
    return all(matcher.accept(byte) for byte in json.dumps(value, ensure_ascii=False).encode()) and matcher.accept(256)


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems", "#"),
        ({"not": {"type": "string"}}, "not", "#"),
        ({"if": {"type": "string"}, "then": {"const": "a"}}, "if", "#"),
        ({"type": "array", "contains": INTEGER}, "contains", "#"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", "#"),
        ({"type": "number", "multipleOf": 2}, "multipleOf", "#"),
        ({"type": "integer", "multipleOf": 0.5}, "multipleOf", "#"),
        ({"type": "integer", "multipleOf": 3, "minimum": 4}, "multipleOf", "#"),
        ({"type": "integer", "multipleOf": 1025}, "multipleOf", "#"),
        ({"items": {"type": "integer", "multipleOf": 10**30}}, "multipleOf", "#/items"),
        ({"type": []}, "type", "#"),
        ({"anyOf": []}, "anyOf", "#"),
        ({"oneOf": []}, "oneOf", "#"),
        ({"allOf": []}, "allOf", "#"),
        ({"enum": []}, "enum", "#"),
        ({"const": {"a": [2**63]}}, "const", "#"),
        ({"enum": [1, -(2**63) - 1]}, "enum", "#"),
        ({"type": "number", "minimum": 2**64 + 1}, "minimum", "#"),
        ({"type": "object", "additionalProperties": INTEGER, "minProperties": 2}, "minProperties", "#"),
        ({"anyOf": [INTEGER, {"type": "string"}], "type": "object"}, "anyOf", "#"),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "allOf", "#"),
        ({"$defs": {"a": INTEGER}, "$ref": "#/$defs/a", "minimum": 3}, "$ref", "#"),
        ({"$ref": "https://example.com/schema"}, "$ref", "#"),
        ({"$ref": "#anchor"}, "$ref", "#"),
        ({"type": "string", "enum": ["a", 1]}, "enum", "#"),
        ({"type": "integer", "const": True}, "const", "#"),
        ({"enum": [1, 2], "minimum": 2}, "enum", "#"),
        ({"minimum": 3}, "minimum", "#"),
        ({"minItems": 3}, "minItems", "#"),
        ({"items": {"format": "email"}}, "format", "#/items"),
        ({"required": ["a"]}, "required", "#"),
        ({"type": "object", "properties": {"b": {}}, "required": ["a"]}, "required", "#"),
        ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^a": {}}}, "patternProperties", "#"),
        ({"patternProperties": {"^a": {}}, "additionalProperties": {}, "type": "object"}, "additionalProperties", "#"),
        ({"type": "object", "propertyNames": {"pattern": "(?=a)"}}, "pattern", "#/propertyNames"),
        ({"type": "object", "propertyNames": {}, "patternProperties": {"^a": {}}}, "propertyNames", "#"),
        ({"type": "string", "pattern": "a", "minLength": 3}, "minLength", "#"),
        ({"type": "string", "format": "email", "maxLength": 3}, "maxLength", "#"),
        ({"type": "string", "pattern": 'say "a"'}, "pattern", "#"),
        ({"type": "object", "patternProperties": {"\\n": {}}}, "patternProperties", "#"),
        ({"type": "string", "maxLength": -1}, "maxLength", "#"),
        ({"type": "string", "minLength": -1}, "minLength", "#"),
        ({"items": {"type": ["string", "null"], "minLength": "2"}}, "minLength", "#/items"),
        ({"type": "array", "minItems": -1}, "minItems", "#"),
        ({"type": "array", "maxItems": 1.5}, "maxItems", "#"),
        ({"type": "object", "minProperties": True}, "minProperties", "#"),
        ({"type": "object", "maxProperties": 2**31}, "maxProperties", "#"),
        ({"properties": {"a": {"type": "string", "required": True}}}, "required", "#/properties/a"),
        ({"properties": {"a": {"required": True}}}, "required", "#/properties/a"),
        ({"properties": {"a": {}}, "required": [1]}, "required", "#"),
        ({"properties": {"a": {}}, "required": "a"}, "required", "#"),
        ({"type": "array", "minContains": 1}, "minContains", "#"),
        ({"items": {}, "maxContains": 1}, "maxContains", "#"),
        ({"type": "array", "maxItems": 3}, "maxItems", "#"),
        ({"items": {"type": ["null", "array"], "minItems": 1}}, "minItems", "#/items"),
        ({"type": "array", "uniqueItems": False}, "uniqueItems", "#"),
        ({"type": "object", "minProperties": 1}, "minProperties", "#"),
        ({"type": "object", "maxProperties": 1}, "maxProperties", "#"),
        ({"type": "string", "pattern": 3}, "pattern", "#"),
        ({"type": "string", "format": ["a list is no name"], "minLength": 2}, "format", "#"),
        ({"properties": {"a/b": {"items": [{}, {"not": {}}]}}}, "", ""),
        ({"properties": {"a/b": {"prefixItems": [{}, {"not": {}}]}}}, "not", "#/properties/a~1b/prefixItems/1"),
        ({"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"minimum": 1}}}, "minimum", "#/$defs/x"),
    ],
)
def test_what_a_grammar_would_pass_over_is_refused(schema: Any, keyword: str, path: str) -> None:
    if not keyword:
        check_schema(schema)  # left to xgrammar, which refuses a list of items
        return
    with pytest.raises(ValueError, match="cannot be enforced") as caught:
        check_schema(schema)
    assert str(caught.value).startswith(f"'{keyword}' at {path} cannot")


def test_depth_circles_and_definitions_that_nobody_uses() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(101):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="more than 100 levels"):
        check_schema(deep)
    check_schema({"type": "object", "properties": {"next": {"$ref": "#"}, "a": {"$ref": "#/$defs/no"}}})
    check_schema({"$defs": {"unused": {"not": {}}}, "type": "integer"})
    check_schema({"properties": {"not": {"type": "string"}, "minimum": {"type": "integer"}}, "required": ["not"]})
    check_schema({"type": "string", "title": "t", "x-note": {"not": 1}, "format": "password", "minLength": 8})
    check_schema({"format": "password"})
    check_schema(True)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "multipleOf": 3}, 9, 10),
        ({"type": "integer", "multipleOf": 1024}, 2048, 2000),
        ({"const": 2**63 - 1}, 2**63 - 1, 2**63 - 2),
        ({"type": "integer", "minimum": 3, "maximum": 12}, 12, 13),
        ({"type": "number", "exclusiveMaximum": 3}, 2.5, 3.0),
        ({"type": "string", "minLength": 2, "maxLength": 3}, "ab\u20ac", "abcd"),
        ({"type": "string", "pattern": '^[^"x]+$'}, "ab", "ax"),
        ({"type": "string", "pattern": "^a$|^b$"}, "b", "c"),
        ({"type": "string", "pattern": "^[A-Z]+(-[0-9]+)?$"}, "AB-12", "AB12"),
        ({"type": "string", "pattern": "(?:-a+b??)??c"}, "-aac", "aac"),
        ({"type": "object", "patternProperties": {"^(-a+)?$": INTEGER}}, {"-a": 1}, {"a": 1}),
        ({"type": "object", "propertyNames": {"pattern": "^(-a+)?$"}}, {"-a": 1}, {"a": 1}),
        ({"type": "string", "pattern": "[\\^a]"}, "^", "b"),
        ({"type": "string", "format": "date"}, "2020-01-02", "today"),
        ({"type": "array", "items": INTEGER, "minItems": 2}, [1, 2], [1]),
        ({"type": "array", "prefixItems": [INTEGER], "items": {"type": "string"}}, [1, "a"], [1, 1]),
        ({"items": INTEGER}, [1], ["a"]),
        ({"type": "array", "items": {}, "minItems": 1, "maxItems": 1}, ["a"], []),
        ({"type": "object", "additionalProperties": {}, "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}, {"a": 1}, {}),
        ({"properties": {"a": INTEGER}, "required": ["a"]}, {"a": 1}, {}),
        ({"properties": {"a": INTEGER}}, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "object", "additionalProperties": INTEGER, "minProperties": 1}, {"b": 1}, {}),
        ({"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False}, {"a": 1}, {"b": 1}),
        ({"type": "object", "propertyNames": {"pattern": "^a$"}}, {"a": 1}, {"b": 1}),
        ({"anyOf": [INTEGER, {"type": "null"}], "description": "d"}, None, 1.5),
        ({"allOf": [INTEGER]}, 1, "a"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, 1.5, "a"),
        ({"properties": {"oneOf": {"oneOf": [INTEGER, {"enum": [1, 2]}]}}}, {"oneOf": 7}, {"oneOf": "a"}),
        ({"$defs": {"a": INTEGER}, "$ref": "#/$defs/a", "title": "t"}, 1, "a"),
        ({"type": ["string", "null"], "minLength": 2}, None, "a"),
        ({"type": "string", "enum": ["a", "b"]}, "b", "c"),
        ({"const": 7}, 7, 8),
    ],
)
def test_what_passes_is_kept(
    compiler: GrammarCompiler, schema: Any, good: Any, bad: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fits(compiler, schema, good) and not fits(compiler, schema, bad)
    assert capfd.readouterr().err == "", "the library passes over nothing"


def test_alternatives_that_something_refers_to_keep_their_name(compiler: GrammarCompiler) -> None:
    schema = {"oneOf": [{"items": {"$ref": "#/oneOf/1"}}, INTEGER]}
    assert fits(compiler, schema, [1]) and not fits(compiler, schema, ["a"])


NEXT = {"$ref": "#/$defs/node"}
ENDLESS: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, "#"),
    ({"properties": {"a": INTEGER, "next": {"$ref": "#"}}, "required": ["a", "next"]}, "#"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#"),
    ({"prefixItems": [INTEGER, {"$ref": "#"}], "minItems": 2}, "#"),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1}, "#"),
    ({"type": "object", "patternProperties": {"a": {"$ref": "#"}}, "minProperties": 1}, "#"),
    ({"properties": {"a": INTEGER, "b": {"$ref": "#"}}, "type": "object", "minProperties": 2}, "#"),
    ({"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"a": NEXT}, "required": ["a"]}}}, "#/$defs/node"),
    ({"anyOf": [NEXT, {"items": NEXT, "minItems": 2}], "$defs": {"node": {"allOf": [{"$ref": "#"}]}}}, "#"),
    ({"items": NEXT, "minItems": 1, "$defs": {"node": {"oneOf": [NEXT, {"$ref": "#/$defs/node"}]}}}, "#/$defs/node"),
]


@pytest.mark.parametrize(("schema", "place"), ENDLESS)
def test_a_schema_whose_values_have_no_end_is_refused_with_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match="no text matches it") as caught:
        check_schema(json.loads(json.dumps(schema)))
    assert str(caught.value) == f"no text matches it: what is at {place} leads back to itself without end"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, {"next": {}}),
        ({"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, {"next": None}),
        ({"type": "array", "items": {"$ref": "#"}}, [[], []]),
        ({"prefixItems": [INTEGER, {"$ref": "#"}], "minItems": 1}, [1, [2]]),
        ({"anyOf": [{"items": {"$ref": "#"}, "minItems": 1}, INTEGER]}, [[1]]),
        ({"oneOf": [{"items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]}, [None]),
        ({"type": "object", "properties": {"a": {"$ref": "#"}, "b": INTEGER}, "minProperties": 1}, {"b": 1}),
        ({"items": NEXT, "minItems": 1, "$defs": {"node": {"anyOf": [NEXT, {"const": 1}]}}}, [1]),
        ({"type": "object", "additionalProperties": {"$ref": "#"}}, {"a": {}}),
    ],
)
def test_a_schema_in_circles_whose_values_can_end_is_kept(compiler: GrammarCompiler, schema: Any, value: Any) -> None:
    assert fits(compiler, schema, value)


def test_whether_values_end_is_seen_soon_in_a_long_chain() -> None:
    chain: dict[str, Any] = {"n0": INTEGER}
    for number in range(1, 1000):
        chain[f"n{number}"] = {"items": {"$ref": f"#/$defs/n{number - 1}"}, "minItems": 1}
    check_schema({"anyOf": [{"$ref": f"#/$defs/{name}"} for name in reversed(chain)], "$defs": chain})
    chain["n0"] = {"items": {"$ref": "#/$defs/n0"}, "minItems": 1}
    with pytest.raises(ValueError, match="no text matches it"):
        check_schema({"anyOf": [{"$ref": f"#/$defs/{name}"} for name in reversed(chain)], "$defs": chain})


LIMITS: list[dict[str, Any]] = [
    {}, {"maxLength": 9}, {"minLength": 1}, {"pattern": "[^a]"}, {"pattern": "."}, {"pattern": "\u00e9?[^a]"},
    {"pattern": "[\u00e0-\u00fc]?.*"}, {"pattern": "]?\\S"}, {"pattern": "\\\u00e9*\\W"},
]  # fmt: skip


@pytest.mark.parametrize("limits", LIMITS)
def test_strings_have_no_letter_that_json_escapes(compiler: GrammarCompiler, limits: dict[str, Any]) -> None:
    grammar = compiler.compile(Structure("json", {"type": "string", **limits}))
    for byte in (*range(32), ord('"')):
        matcher = grammar.matcher()
        assert not all(matcher.accept(one) for one in (ord('"'), byte, ord('"'))), byte


PATTERNS = ["^a+$", "[a-z]{2}", ".{0,3}", "\\d+\\.\\d", "[^b]", "[a-z]+(-\\d+)?", "(\u00e9[^b]+)?[.?]", "\\W??]"]


def random_schema(chance: random.Random, depth: int) -> dict[str, Any]:
    """A schema of what passes, two levels deep at most."""
    name = partial(chance.choice, ["a", "b", "cc", 'd"e', "\u00e9"])
    inner = partial(random_schema, chance, depth - 1)
    limits = {"minimum": chance.randint(-30, 9), "maximum": chance.randint(10, 300)}
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "integer", **(limits if chance.random() < 0.7 else {"multipleOf": 7})},
        lambda: {"type": "number", "minimum": chance.randint(-900, 900) / 100, "exclusiveMaximum": 12.5},
        lambda: {"type": "string", "minLength": chance.randint(0, 3), "maxLength": chance.randint(3, 6)},
        lambda: {"type": "string", "pattern": chance.choice(PATTERNS)},
        lambda: {"type": "string", "format": chance.choice(["date", "time", "email", "ipv4", "uuid"])},
        lambda: chance.choice([{"enum": [1, "a", None, {"x": [1]}]}, {"const": 'a"\n'}, {"type": ["null", "boolean"]}]),
        lambda: {"type": "array", "items": inner(), "minItems": chance.randint(0, 2), "maxItems": 3},
        lambda: {"type": "array", "prefixItems": [inner(), inner()], "items": inner()},
        lambda: {"type": "object", "properties": (found := {name(): inner() for _ in range(3)}), "required": [*found]},
        lambda: {"type": "object", "properties": {name(): inner()}, "additionalProperties": inner()},
        lambda: {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": inner()},
        lambda: {"anyOf": [inner(), inner()]},
    ]
    return chance.choice(kinds[: 12 if depth else 6])()


def random_text(compiler: GrammarCompiler, schema: dict[str, Any], chance: random.Random) -> str:
    """A text drawn byte by byte, with some hurry to its end."""
    matcher = compiler.compile(Structure("json", schema)).matcher()
    text = b""
    while not matcher.finished:
        words = matcher.fill().tolist()
        allowed = [byte for byte in range(257) if words[byte // 32] >> byte % 32 & 1]
        assert allowed, (schema, text, matcher.problem)
        quick = [byte for byte in allowed if byte in (*b'"}]', 256)]
        byte = chance.choice(quick if quick and chance.random() < 0.5 else allowed)
        assert matcher.accept(byte)
        text += bytes([byte]) if byte < 256 else b""
    return text.decode(errors="replace")


def test_text_drawn_under_random_schemas_fits_them(compiler: GrammarCompiler) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is absent: nothing to compare with")
    for seed in range(150):
        chance = random.Random(seed)
        schema = random_schema(chance, 2)
        jsonschema.validate(json.loads(random_text(compiler, schema, chance)), schema)


def test_blanks_between_elements_have_an_end(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Structure("json", {"type": "array", "items": INTEGER})).matcher()
    assert matcher.accept(ord("["))
    taken = 0
    while taken < 100 and matcher.accept(ord(" ")):
        taken += 1
    assert 32 <= taken < 100 and matcher.accept(ord("1"))


def test_an_expression_is_taken_without_a_word(compiler: GrammarCompiler, capfd: pytest.CaptureFixture[str]) -> None:
    matcher = compiler.compile(Structure("regex", "^a\\_b$|^\\@[\\#]$")).matcher()
    assert all(matcher.accept(byte) for byte in (*b"a_b", 256))
    assert capfd.readouterr().err == ""


def test_two_expressions_for_names_that_are_the_same_are_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(ValueError, match="'patternProperties' are the same expression"):
        compiler.compile(Structure("json", {"type": "object", "patternProperties": {"^a": INTEGER, "a": {}}}))
