"""Numbers on the benchmarks' command lines."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number from 1 to 2^31 - 1.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        found = int(text)
    except ValueError:
        found = 0
    if not 1 <= found < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {2**31 - 1}")
    return found


def counts(text: str) -> tuple[int, ...]:
    """Such numbers with commas between them, each once.

    Raises:
        ArgumentTypeError: one of them is none.
    """
    return tuple(dict.fromkeys(count(one) for one in text.split(",")))
