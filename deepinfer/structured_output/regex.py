"""Regular expressions as xgrammar takes them: what it would misread is refused, anchors at the ends are left out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_CLASSES = "dDwWsS"
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_HEX = {"x": 2, "u": 4}
_ESCAPED = frozenset("\"$'()*+-./?[\\]^{|}")
"""Letters that xgrammar takes for themselves behind a backslash, without a word."""
_HALVES = range(0xD800, 0xE000)
"""Numbers that stand for no letter: UTF-16 writes one beyond four digits as two of them, UTF-8 none."""
_CODE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\})")
_BRACES = re.compile(r"\{\d+(,\d*)?\}")
_SPECIAL_GROUP = re.compile(r"\(\?(?!:|<\w)<?.?")
"""All but (?:…) and (?<name>…): lookahead would be passed over in patterns of JSON strings."""
_JUDGED_LATER = "bBkpPc123456789"
"""Escapes that xgrammar refuses itself, saying why, if outside of a [class]."""
_NOT_IN_CLASSES = "BkpP123456789"
"""Those of them that it takes for their letters there."""
_NAMED_CLASS = re.compile(r"\[:\^?[a-z]+:\]")
"""As [:alpha:], which would be the letters that its name has."""


@dataclass(frozen=True)
class Unit:
    """A letter or an escape of an expression. letter: what it stands for, '' for a class or a syntax letter.

    place: where it begins. depth: of how many groups it is in. inside: of how many units its [class] is before it;
    None outside.
    """

    text: str
    letter: str
    place: int
    depth: int
    inside: int | None


def units(pattern: str) -> Iterator[Unit]:
    """The units of an expression in order. Raises ValueError at what xgrammar would pass over or take for a letter."""
    depth, place, inside = 0, 0, None
    while place < len(pattern):
        text = _escape(pattern, place) if pattern[place] == "\\" else pattern[place]
        special = _SPECIAL_GROUP.match(pattern, place) if inside is None and len(text) == 1 else None
        if special:
            raise ValueError(f"a group with {special[0]}, as at position {place}, is not known here")
        if inside == 1 and text == "]" and pattern[place - 2 : place] == "[^":
            raise ValueError(
                f"[^] at position {place - 2} is no [class], and others read on to the next ]; for any letter write "
                "[\\s\\S], for all but ] write [^\\]]"
            )
        if inside is not None and len(text) > 1 and text[1] in _NOT_IN_CLASSES:
            raise ValueError(f"{text} at position {place} is no escape that is known in a [class]")
        if inside is not None and (named := _NAMED_CLASS.match(pattern, place)) and len(text) == 1:
            raise ValueError(f"{named[0]} at position {place} is not known here; write what it stands for, as a-z")
        syntax = len(text) == 1 and (text in "]^-" if inside is not None else text in "()[|^$.*+?{}")
        depth -= inside is None and text == ")"
        yield Unit(text, "" if syntax else _letter(text, place), place, depth, inside)
        depth += inside is None and text == "("
        if inside is not None:
            inside = None if text == "]" else inside + 1
        elif text == "[":
            inside = 0
        place += len(text)


def checked_regex(pattern: str) -> str:
    """An expression as xgrammar reads it, without anchors where they say nothing new: the whole text has to match.

    Raises:
        ValueError: an anchor is within the expression, an escape, a brace or a [class] is none to others, something is
            repeated twice, a group is more than a group, or a [class] begins with an escaped ^, which xgrammar takes
            for a bare one.
    """
    kept = []
    for unit in _without_anchors(pattern):
        if unit.inside == 0 and unit.letter == "^":
            raise ValueError(f"{unit.text} at position {unit.place} begins a [class]; write it behind another letter")
        kept.append(_spelled(unit))
    return "".join(kept)


def _without_anchors(pattern: str) -> Iterator[Unit]:
    found = list(units(pattern))
    _check_repetitions(pattern, found)
    for index, unit in enumerate(found):
        before = found[index - 1].text if index else "|"
        after = found[index + 1].text if index + 1 < len(found) else "|"
        if unit.inside is not None or unit.text not in "^$":
            yield unit
        elif unit.depth or (before if unit.text == "^" else after) != "|":
            raise ValueError(f"{unit.text} at position {unit.place} is within the text, which has to match whole")


def _check_repetitions(pattern: str, found: Sequence[Unit]) -> None:
    """Refuse a brace or a repetition of a repetition that others read otherwise, as xgrammar does outside of JSON."""
    before, repeats, end = "", False, 0  # the unit before; whether it ends a repetition; where one with braces ends
    for unit in found:
        if unit.place < end:
            continue
        sign = unit.text if unit.inside is None and unit.text in ("*", "+", "?", "{") else ""
        if sign == "{":
            braces = _BRACES.match(pattern, unit.place)
            if not braces:
                raise ValueError(
                    f"{{ at position {unit.place} begins no repetition, as {{2}}, {{2,}} or {{2,5}}; for the letter "
                    "write \\{"
                )
            sign, end = braces[0], braces.end()
        if sign == "?" and (repeats or before == "("):  # a lazy one, or the mark of a group
            sign = ""
        if sign and (repeats or before == "?"):
            raise ValueError(
                f"{sign} at position {unit.place} repeats a repetition; put what is repeated into a group, (?:...)"
            )
        before, repeats = unit.text, bool(sign)


def _spelled(unit: Unit) -> str:
    if not unit.letter or unit.text[0] != "\\":
        return unit.text
    if unit.text[1] == "x":  # xgrammar takes every hexadecimal digit that follows, but four after \u
        return f"\\u00{unit.text[2:]}"
    known = unit.text[1] in _ESCAPED or (unit.text[1].isascii() and unit.text[1].isalnum())
    return unit.text if known else unit.letter  # of others it says on stderr that it takes them for themselves


def checked_string_pattern(pattern: str) -> str:
    """The same of an expression for a JSON string, which xgrammar reads by other means.

    It would write a quote, a backslash or a control character that an expression names as it is, and the text would be
    no JSON. In a [class] with others it leaves the letter out, which is right, but not where a letter beyond ASCII or a
    bare ] is in the expression: these are escaped. By (-a+)? it would take an a without the -: {0,1} is right.

    Raises:
        ValueError: as `checked_regex`, or it names a quote, a backslash or a control character. A [class] may begin
            with an escaped ^.
    """
    found = list(_without_anchors(pattern))
    for unit, after in pairwise([*found, Unit("", "", 0, 0, None)]):
        alone = unit.inside is None or (unit.inside == 0 and after.text == "]")
        if alone and unit.letter and (unit.letter in '"\\' or unit.letter < " "):
            raise ValueError(f"the pattern {pattern!r} names {unit.letter!r}, which JSON has to write as an escape")
    kept: list[str] = []
    before, repeats, end = "", False, -1  # the unit before; whether it ends a repetition; where one with braces ends
    for unit in found:
        text = _escaped(unit)
        if unit.inside is None and unit.text == "{" and (braces := _BRACES.match(pattern, unit.place)):
            end = braces.end() - 1
        if unit.inside is None and unit.text == "?" and before != "(":
            text = "" if repeats else "{0,1}"  # a lazy repetition matches the same texts
        kept.append(text)
        repeats = unit.inside is None and (unit.text in ("*", "+") or unit.place == end or text == "{0,1}")
        before = unit.text
    return "".join(kept)


def _escaped(unit: Unit) -> str:
    if unit.text.isascii() and (unit.text != "]" or unit.inside is not None):
        return unit.text
    code = ord(unit.text[-1])  # of an escaped letter the letter
    return "\\]" if code == ord("]") else f"\\u{{{code:x}}}"


def _escape(pattern: str, place: int) -> str:
    kind = pattern[place + 1 : place + 2]
    if kind.isascii() and kind.isalnum() and kind not in (*_CLASSES, *_CONTROLS, *_HEX, *_JUDGED_LATER):
        raise ValueError(f"\\{kind} at position {place} is no escape that is known here")
    if kind == "0" and pattern[place + 2 : place + 3] in tuple("0123456789"):
        raise ValueError(
            f"{pattern[place : place + 3]} at position {place} is no escape that is known here; a letter "
            "by its number is \\x and two hexadecimal digits"
        )
    if kind == "u" and pattern[place + 2 : place + 3] == "{":
        return pattern[place : pattern.find("}", place) + 1] or pattern[place:]
    return pattern[place : place + 2 + (kind == "c") + _HEX.get(kind, 0)]


def _letter(text: str, place: int) -> str:
    if text[0] != "\\" or len(text) == 1:
        return text
    kind = text[1]
    if kind in _HEX:
        number = int(text[2:].strip("{}"), 16) if _CODE.fullmatch(text) else sys.maxunicode + 1
        if number > sys.maxunicode:
            raise ValueError(f"{text} at position {place} is no character")
        if number in _HALVES:
            raise ValueError(
                f"{text} at position {place} is no character, but half of one; write the letter itself, or "
                "\\u{1F600} with its number"
            )
        return chr(number)
    if kind == "c":
        return chr(ord(text[2]) % 32) if text[2:].isascii() and text[2:].isalpha() else ""
    return "" if kind in _CLASSES else _CONTROLS.get(kind, kind)
