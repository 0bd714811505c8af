"""Inputs for every kernel: used by the tests, by the A/B harness, and to compile every variant ahead of time.

Each family's module has `cases() -> list[Case]`. A case is one call of one factory; making its inputs is cheap to put
off, and gives the same values on every machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from deepinfer.ops.case import Case
from deepinfer.ops.names import ALL_FAMILIES


def cases(families: Iterable[str] = ALL_FAMILIES) -> list[Case]:
    """The cases of these families. Raises ValueError where two have one name or a factory of a family has none."""
    found: list[Case] = []
    for family in families:
        own: list[Case] = importlib.import_module(f"deepinfer.ops.cases.{family}").cases()
        names = [case.name for case in own]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"cases of {family} have one name twice: {', '.join(twice)}")
        if lacking := set(ALL_FAMILIES[family]) - {case.factory for case in own}:
            raise ValueError(f"no case of {family} covers {', '.join(sorted(lacking))}")
        found += own
    return found
