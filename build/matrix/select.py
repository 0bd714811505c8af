"""Which images or components a command line means: names, globs and comma lists. Everything else is just text."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from build.errors import NothingSelected
from build.matrix.problems import near, shown

MAX_PATTERN = 1000


def select(names: Sequence[str], pattern: str | None, what: str) -> list[str]:
    """The names that a pattern selects, in the order of `names`, each once.

    Args:
        names: the names that exist.
        pattern: names and globs (`*`, `?`, `[…]`), separated by commas; None selects every name.
        what: "image" or "component", for the message.

    Raises:
        NothingSelected: with every item of the pattern that names nothing, and the nearest names.
    """
    if pattern is None:
        return list(names)
    items = [item.strip() for item in pattern[:MAX_PATTERN].split(",")]
    chosen: set[str] = set()
    wrong: list[str] = []
    for item in dict.fromkeys(filter(None, items)):
        found = [name for name in names if name == item or fnmatch.fnmatchcase(name, item)]
        chosen.update(found)
        if not found:
            wrong.append(_unknown(item, names, what))
    if len(pattern) > MAX_PATTERN:
        wrong.append(f"a selection of more than {MAX_PATTERN} characters")
    if wrong or not chosen:
        raise NothingSelected(
            "; ".join(wrong) or f"the selection {shown(pattern)} names no {what}",
            next_step=f"{what}s: {', '.join(names)}; globs and comma lists work too, such as '{names[0]},*'"
            if names
            else f"matrix.yaml names no {what}",
        )
    return [name for name in names if name in chosen]


def _unknown(item: str, names: Sequence[str], what: str) -> str:
    if any(mark in item for mark in "*?["):
        return f"no {what} matches {shown(item)}"
    hint = near(item, names)
    return f"there is no {what} {shown(item)}{hint if 'mean' in hint else ''}"
