"""JSON from outside: what Python's reader passes over, or ends in an error of its own."""

from __future__ import annotations

import json

import pytest

from deepinfer.json_text import strict_json


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', 'it has "c" twice in one object'),
        ('[{"\\ud800": 1, "\\ud800": 2}]', r'it has "\\ud800" twice'),
        ("[" * 200_000, "it is nested too deeply"),
        ('{"a":' * 200_000, "it is nested too deeply"),
        ("[" * 200_000 + "]" * 200_000, "it is nested too deeply"),
        (b"\xff\xfe\xff", "codec can't decode"),
        ("{}".encode("utf-16"), "codec can't decode"),
        ("9" * 5000, "limit"),
    ],
)
def test_what_is_not_read(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why) as told:
        strict_json(text)
    assert str(told.value).isascii()


@pytest.mark.parametrize("value", [{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}, {}, None, "x", 1.5, [[]]])
def test_what_is_read(value: object) -> None:
    assert strict_json(json.dumps(value)) == value
