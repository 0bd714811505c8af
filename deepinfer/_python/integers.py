"""Arguments as the compiled part reads them."""

from __future__ import annotations

import operator
from typing import Final, SupportsIndex

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


def as_integer(value: SupportsIndex, name: str) -> int:
    """An int, or anything with __index__ (numpy's integers), that fits 64 bits: TypeError or ValueError if not."""
    try:
        index = int(operator.index(value))
    except TypeError as problem:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from problem
    if not -MAX_INT64 - 1 <= index <= MAX_INT64:
        raise ValueError(f"{name} does not fit 64 bits")
    return index


def as_bounded(value: SupportsIndex, name: str, lowest: int) -> int:
    """An integer from `lowest` to the largest int32."""
    number = as_integer(value, name)
    if not lowest <= number <= MAX_INT32:
        raise ValueError(f"{name} must be {lowest} to {MAX_INT32}, not {number}")
    return number
