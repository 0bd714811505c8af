"""Expressions: what others read otherwise is refused by its place, and what passes is spelled as it is read rightly."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from deepinfer.structured_output.regex import checked_regex, checked_string_pattern


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^a+$", "a+"), ("^a$|^b$", "a|b"), ("[^$]\\$\\^", "[^$]\\$\\^"), ("a|", "a|"), ("", ""), ("[a^$]", "[a^$]"),
        ("(?:a)(?<n>[(?=])\\(?", "(?:a)(?<n>[(?=])\\(?"),
        ("\\x411\\u0042\\u{1F642}[\\]]", "\\u00411\\u0042\\u{1F642}[\\]]"), ("\\\\x41", "\\\\x41"),
        ("\\_[\\:\\-\\é]\\.\\/", "_[:\\-é]\\.\\/"), ("[a\\^]\\^[^\\^]", "[a\\^]\\^[^\\^]"),
    ],
)  # fmt: skip
def test_anchors_at_the_ends_say_nothing_new(pattern: str, expected: str) -> None:
    assert checked_regex(pattern) == expected


@pytest.mark.parametrize(
    "pattern", ["a^b", "a$b", "(?=a)b", "(?!a)b", "(?i)a", "(?P<n>a)", "(^a)b", "x(a$)", "\\Aa", "a\\Z", "\\Qa", "^^a"]
)
def test_what_would_be_misread_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="at position"):
        checked_regex(pattern)


@pytest.mark.parametrize("pattern", ["[\\^a]", "x[\\x5e]", "[\\u005e-z]", "[\\u{5e}]"])
def test_a_class_that_would_become_that_of_all_other_letters_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"at position \d begins a \[class\]; write it behind another letter"):
        checked_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[^]", "[^] at position 0 is no [class]"), ("a[^]b]", "[^] at position 1 is no [class]"),
        ("\\07", "\\07 at position 0 is no escape that is known here"), ("a\\012", "\\01 at position 1 is no escape"),
        ("[\\07]", "\\07 at position 1 is no escape"), ("[\\060-\\071]", "\\06 at position 1 is no escape"),
        ("\\08", "\\08 at position 0 is no escape that is known here; a letter by its number is \\x"),
        ("\\ud83d\\ude00", "\\ud83d at position 0 is no character, but half of one"),
        ("[a\\ude00]", "\\ude00 at position 2 is no character, but half of one; write the letter itself,"),
        ("\\u{D800}", "\\u{D800} at position 0 is no character, but half"),
        ("\\u{110000}", "at position 0 is no character"),
        ("a?+", "+ at position 2 repeats a repetition"), ("a**", "* at position 2 repeats a repetition"),
        ("a{1,2}{3}", "{3} at position 6 repeats a repetition; put what is repeated into a group, (?:"),
        ("a*??", "? at position 3 repeats a repetition"), ("a{2}?+", "+ at position 5 repeats"),
        ("(a)++", "at position 4 repeats"),
        ("a{ 2}", "{ at position 1 begins no repetition"), ("a{2, 3}", "{ at position 1 begins no repetition"),
        ("(a|{b})", "{ at position 3 begins no repetition, as {2}, {2,} or {2,5}; for the letter write \\{"),
        ("a{2 }", "{ at position 1 begins no"), ("a{,3}", "{ at position 1 begins no"),
        ("x{", "{ at position 1 begins no"),
        ("[\\101]", "\\1 at position 1 is no escape that is known in a [class]"),
        ("[a\\p{L}]", "\\p at position 2 is no"),
        ("[\\B]", "\\B at position 1 is no"), ("[^\\k]", "\\k at position 2 is no"),
        ("[a[:^digit:]]", "[:^digit:] at position 2 is not known here; write what it stands for"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("checked", [checked_regex, checked_string_pattern])
def test_what_others_read_otherwise_is_refused_everywhere(
    checked: Callable[[str], str], pattern: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        checked(pattern)


def test_what_looks_like_a_repetition_of_one_passes() -> None:
    for pattern in (
        "(?:a?)+",
        "[*+?{]*",
        "\\*+",
        "(?:a*)*?",
        "\\{{2}",
        "a}?",
        "[^\\]]",
        "(?<n>a)?",
        "[[^]",
        "[\\0-a]",
        "[[:]",
    ):
        checked_regex(pattern)
        checked_string_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^(a+b)?$|^c?$", "(a+b){0,1}|c{0,1}"), ("a+?b*?c??d{1,2}?e{3}?", "a+b*c{0,1}d{1,2}e{3}"),
        ("(?:a)?(?<n>b)?", "(?:a){0,1}(?<n>b){0,1}"), ("[?]?\\??[]]", "[?]{0,1}\\?{0,1}[]\\]"),
        ("\u00e9\\\u00e9[\u00e0-\u00fc]]\\]", "\\u{e9}\\u{e9}[\\u{e0}-\\u{fc}]\\]\\]"),
    ],
)  # fmt: skip
def test_patterns_of_json_strings_are_spelled_as_they_are_read_rightly(pattern: str, expected: str) -> None:
    assert checked_string_pattern(pattern) == expected


def test_patterns_of_json_strings_name_no_letter_that_json_escapes() -> None:
    for pattern in ('[^"]*', "[\\n\\t]", "a.b", "\\w+\\s", '["a]', "\\.", "[^\\\\]", "\\/"):
        checked_string_pattern(pattern)
    for pattern in ('"', '\\"', "\\\\", "\\n", "a\tb", "\\x22", "\\u005c", "\\u{22}", "[\\t]", '["]', "(\\x0a)"):
        with pytest.raises(ValueError, match="has to write as an escape"):
            checked_string_pattern(pattern)
    with pytest.raises(ValueError, match="has to write as an escape"):
        checked_string_pattern("\\cA")
    for pattern in ("\\xg1", "\\x4", "\\u004", "\\u{}", "\\u{41", "\\u{FFFFFFFF}", "\\x", "\\u"):
        with pytest.raises(ValueError, match="is no character"):
            checked_regex(pattern)
