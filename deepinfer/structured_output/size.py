"""How long a grammar is when what it repeats is written out, which is what compiling it takes time for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

LONGEST_GRAMMAR = 2**16
"""Characters of a grammar, of whatever kind: compiling takes 2 s for one text as long, and longer ones ever longer
(half a minute for four times as long), which other requests would wait for.
"""
WRITTEN_OUT = 128
"""Repetitions up to as many are written out when they are compiled, and of more there are as many written out."""
MOST_DIGITS = 9
"""Of a count of repetitions: of a larger one xgrammar keeps the last 32 bits."""
_EXPRESSION = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{\d++(?:,\d*+)?\}|.", re.DOTALL)
"""An escape, a [class], a repetition, or another letter. Nothing is looked at twice: an end may be missing."""
_GRAMMAR = re.compile(
    r"#[^\n]*+|\s++|"
    r'"(?:\\.|[^"\\])*+"?|\[(?:\\.|[^\]\\])*+\]?|\{\s*+\d++\s*+(?:,\s*+\d*+\s*+)?\}|::=|[A-Za-z_][\w.-]*+|.',
    re.DOTALL,
)
"""A comment, blanks, a "text", a [class], a repetition, the sign of a rule, a name, or another letter."""


def size_of(grammar: str, *, ebnf: bool = False) -> int:
    """Characters of an expression or a grammar, where what {m,n} repeats counts as often as it is written out.

    A name that is repeated counts as the texts of its rule, which take its place.

    Raises:
        ValueError: a repetition is of more than 999 999 999 times.
    """
    if len(grammar) > LONGEST_GRAMMAR:
        return len(grammar)
    parts = (_GRAMMAR if ebnf else _EXPRESSION).findall(grammar)
    of_rules = _of_rules([part for part in parts if not _is_blank(part)]) if ebnf else {}
    groups, last = [(0, 0)], 0  # of each group that is open: characters and parts; of the part before: characters
    for part in parts:
        letters, count = groups[-1]
        if part == "(":
            groups.append((0, 0))
        elif part == ")" and groups[1:]:
            groups.pop()
            last = last if count == 1 else letters
            groups[-1] = groups[-1][0] + letters, groups[-1][1] + 1
        elif part[0] == "{" and part[1:]:
            times = min(WRITTEN_OUT, max(map(_count, filter(str.strip, part[1:-1].split(",")))))
            groups[-1] = letters + last * max(0, times - 1), count
            last *= max(1, times)
        elif ebnf and _is_blank(part):
            groups[-1] = letters + len(part), count
        else:
            own = 1 if part[0] in "[\\" else len(part)
            last = of_rules.get(part, own)
            groups[-1] = letters + own, count + 1
    return max(len(grammar), sum(letters for letters, _ in groups))


def _count(number: str) -> int:
    digits = number.strip().lstrip("0")
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it repeats something {digits} times; {'9' * MOST_DIGITS} is the most that can be counted")
    return int(digits or 0)


def _is_blank(part: str) -> bool:
    return part.isspace() or part[0] == "#"


def _of_rules(parts: Sequence[str]) -> Mapping[str, int]:
    """Of each rule the characters of its texts; of one that is but another's name, those of the other."""
    rules: dict[str, list[str]] = {}
    name = ""
    for part, following in itertools.pairwise([*parts, ""]):
        if following == "::=":
            name = part
            rules[name] = []
        elif name and part not in ("::=", "(", ")"):
            rules[name].append(part)
    found: dict[str, int] = {}
    for name in rules:
        chain = [name]
        while chain[-1] not in found and len(body := rules[chain[-1]]) == 1 and body[0] in rules:
            found[chain[-1]] = 1  # where it leads back here, it has no text
            chain.append(body[0])
        end = chain[-1]
        if end not in found:
            found[end] = max(1, sum(len(part) for part in rules[end] if part[0] == '"'))
        found.update(dict.fromkeys(chain, found[end]))
    return found
