"""Run cases on two backends and say what differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import problems, run


@dataclass(frozen=True)
class Row:
    """One case's result. problems: what differs or failed; empty where both agree."""

    family: str
    factory: str
    case: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether both backends agree."""
        return not self.problems


def compare(cases: Iterable[Case], expected: str, got: str, device: torch.device | str) -> Iterator[Row]:
    """Run each case on backend `expected` and on `got`, both on `device`."""
    for case in cases:
        yield Row(case.family, case.factory, case.name, tuple(_compare(case, expected, got, device)))


def _compare(case: Case, expected: str, got: str, device: torch.device | str) -> list[str]:
    call = case.call()
    try:
        outcomes = [run(case.factory, call, backend, device) for backend in (expected, got)]
    except Exception as problem:  # a backend that raises is a finding like a wrong value, and the other cases go on
        return [f"{type(problem).__name__}: {str(problem).strip()[:1000]}"]
    return problems(call, *outcomes)
