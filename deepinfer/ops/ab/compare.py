"""Compare two sides, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from deepinfer.ops.ab.sides import Dumped, FailedThereError, Side
from deepinfer.ops.case import Case
from deepinfer.ops.execution import problems

Begun = Callable[[Case], None]


@dataclass(frozen=True)
class Row:
    """One case's result. problems: what differs or failed; empty where both agree.

    skipped: the listed reason for which it was left out, '' if it was not.
    """

    family: str
    factory: str
    case: str
    problems: tuple[str, ...]
    skipped: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


@dataclass(frozen=True)
class Skips:
    """What may be left out, and why. large: the reason for large cases, '' where they run.

    listed: (glob of a factory or of FACTORY/CASE, reason).
    """

    large: str = ""
    listed: Sequence[tuple[str, str]] = ()

    def reason(self, case: Case) -> str:
        """Why this case is left out; '' if it is not."""
        if case.large and self.large:
            return self.large
        for pattern, reason in self.listed:
            if fnmatchcase(case.factory, pattern) or fnmatchcase(f"{case.factory}/{case.name}", pattern):
                return reason
        return ""


def compare(
    cases: Iterable[Case], expected: Side, got: Side, skips: Skips | None = None, begun: Begun = lambda _: None
) -> Iterator[Row]:
    """Run each case on both sides. A dump among them gives the inputs; what it lacks is a problem unless it is listed.

    begun: called before each case that runs.
    """
    for case in cases:
        reason = (skips or Skips()).reason(case)
        if not reason:
            begun(case)
        found = () if reason else tuple(_compare(case, expected, got))
        yield Row(case.family, case.factory, case.name, found, reason)


def _compare(case: Case, expected: Side, got: Side) -> list[str]:
    call = None
    for side in (got, expected):
        if isinstance(side, Dumped):
            if not side.has(case):
                return ["the dump does not have it, and no reason is listed"]
            try:
                call = side.call(case)
            except Exception as problem:  # a damaged entry is a finding, and the other cases go on
                return [_told(problem)]
    try:
        call = call or case.call()
        outcomes = []
        for name, side in (("expected side", expected), ("", got)):
            try:
                outcomes.append(side.outcome(case, call))
            except Exception as problem:  # a backend that raises is a finding like a wrong value
                return [f"{name}: {_told(problem)}" if name else _told(problem)]
        return problems(call, *outcomes)
    except Exception as problem:  # so is a case that cannot be built or judged
        return [f"the case itself: {_told(problem)}"]


def _told(problem: Exception) -> str:
    kind = "" if isinstance(problem, FailedThereError) else f"{type(problem).__name__}: "
    return f"{kind}{str(problem).strip()[:1000]}"
