"""JSON that comes from outside, read in one way everywhere: what it says twice, or too deeply, is not read at all."""

from __future__ import annotations

import json
from typing import Any


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text, where every name in an object is there once.

    Python's own reader takes the last of two, and the first is lost without a word.

    Raises:
        ValueError: it is no JSON, no UTF-8, nested too deeply, or says a name twice; the message is ASCII.
    """
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"it has {json.dumps(twice)[:80]} twice in one object")
    return found
