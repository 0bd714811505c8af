"""Whose kernels are warmed: each provider compiles what it launches in a run, under the driver that is active."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Provider:
    """compile: compiles all of its kernels for the active driver's target; returns what could not be compiled, a line
    each."""

    name: str
    compile: Callable[[], list[str]]


def _probe() -> list[str]:
    from deepinfer.probe.work import warm_up

    return warm_up()


PROVIDERS = (Provider("probe", _probe),)
