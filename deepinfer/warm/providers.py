"""Whose kernels are warmed: each provider compiles what it launches in a run, under the driver that is active.

The names are known without importing Triton, which `compile` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepinfer.ops.names import ALL_FAMILIES


@dataclass(frozen=True)
class Provider:
    """compile: compiles all of its kernels for the active driver's target; returns what failed, a line each."""

    name: str
    compile: Callable[[], list[str]]


def _probe() -> list[str]:
    from deepinfer.probe.work import warm_up

    return warm_up()


def _family(family: str) -> Callable[[], list[str]]:
    """The variants of a family's kernels that the real model uses."""

    def compile_family() -> list[str]:
        from deepinfer.ops.variants import compile_cases

        return list(compile_cases([family], engine_only=True).problems)

    return compile_family


PROVIDERS = (
    Provider("probe", _probe),
    *(Provider(f"ops.{family}", _family(family)) for family in ALL_FAMILIES),
)
