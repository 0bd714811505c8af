"""What a registry, or the way to it, says of a failure: a line of it, without anything that was sent."""

from __future__ import annotations

import json
import re
from typing import Any

import requests


def said(got: requests.Response) -> str:
    """A status with the registry's own words, a line; nothing of what was sent to it."""
    text = ""
    try:
        errors = json.loads(got.content[: 1 << 20]).get("errors") or []
        text = "; ".join(f"{error.get('code', '')} {error.get('message', '')}".strip() for error in errors[:3])
        if re.search(r"'Err': 28\b|no space left", str(errors)):  # ENOSPC, as Debian's registry tells it
            text += " (no space is left in the registry)"
    except (ValueError, AttributeError, TypeError, requests.exceptions.RequestException):
        pass
    return f"{got.status_code} {got.reason or ''} {text}".strip()[:300]


def plain_words(problem: Exception) -> str:
    """The innermost reason of what `requests` raised, a line of it."""
    inner: Any = problem
    while True:
        deeper = getattr(inner, "reason", None) or (inner.args[0] if getattr(inner, "args", ()) else None)
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    text = str(inner)
    return (text.partition(": ")[2] if text.startswith("<") else text).splitlines()[0][:200] if text else "no answer"
