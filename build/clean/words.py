"""How `clean` says what it does."""

from __future__ import annotations

import sys


def gb(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def say(text: str) -> None:
    """A line on stderr."""
    print(f"clean: {text}", file=sys.stderr, flush=True)
