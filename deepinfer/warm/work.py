"""Fill Triton's cache: every provider's kernels, then the C modules that a first launch would build."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton import knobs

from deepinfer.activation import activate
from deepinfer.warm import cache
from deepinfer.warm.providers import Provider
from deepinfer.warm.stand_in import HopperDriver, NoModulesError, provide_cuda

TARGET = "sm_90a"


@dataclass(frozen=True)
class Result:
    """What became of a provider's kernels: those that none before it had asked for, and what did not compile."""

    name: str
    kernels: int
    problems: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Report:
    """What was compiled and what was found. without_modules: why no C module could be built, empty if they were."""

    record: cache.Record
    results: tuple[Result, ...]
    without_modules: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Every kernel is in the cache now. A machine without a C compiler cannot launch any, warmed or not."""
        return not any(result.problems for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """The JSON object documented in `deepinfer.warm`."""
        warm = activate().warm
        return {
            "ok": self.ok,
            "triton": str(triton.__version__),
            "target": TARGET,
            "folder": str(knobs.cache.dir),
            "warm": None if warm is None else str(warm),
            "kernels": self.record.kernels.to_json(),
            "modules": self.record.modules.to_json(),
            "without_modules": self.without_modules or None,
            "providers": [
                {
                    "name": one.name,
                    "kernels": one.kernels,
                    "problems": list(one.problems),
                    "seconds": round(one.seconds, 2),
                }
                for one in self.results
            ],
            "entries": dict(sorted(self.record.entries.items())),
            "seconds": round(self.seconds, 2),
        }


def fill(providers: Sequence[Provider], on_result: Callable[[Result], None] = lambda result: None) -> Report:
    """Compile what is in no cache yet. For a process that does nothing else: its driver is a stand-in afterwards.

    on_result: told of each provider as it is done.
    """
    start = time.monotonic()
    record = cache.count()
    seen: list[tuple[Any, dict[str, Any]]] = []
    results = []
    with _listening(seen):
        for provider in providers:
            triton.runtime.driver.set_active(_driver())
            before, began = len(record.entries), time.monotonic()
            problems = _compile(provider)
            kernels = len(record.entries) - before
            results.append(Result(provider.name, kernels, tuple(problems), time.monotonic() - began))
            on_result(results[-1])
    without = _build_modules(seen)
    return Report(record, tuple(results), without, time.monotonic() - start)


def _driver() -> Any:
    """Untyped: it has what is used of Triton's DriverBase."""
    return HopperDriver()


def _compile(provider: Provider) -> list[str]:
    try:
        return provider.compile()
    except Exception as problem:  # one provider's fault is reported beside what the others did
        return [f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"]


@contextlib.contextmanager
def _listening(seen: list[tuple[Any, dict[str, Any]]]) -> Iterator[None]:
    """Gather source and metadata of every kernel that is compiled or found."""

    def listen(*, src: Any, metadata: dict[str, Any], **_: Any) -> None:
        seen.append((src, metadata))

    before, knobs.compilation.listener = knobs.compilation.listener, listen
    try:
        yield
    finally:
        knobs.compilation.listener = before


def _build_modules(seen: list[tuple[Any, dict[str, Any]]]) -> str:
    """Build `cuda_utils` and every kernel's launcher; empty, or why not."""
    with tempfile.TemporaryDirectory(prefix="deepinfer-warm-") as folder:
        try:
            provide_cuda(Path(folder))
            driver: Any = HopperDriver().with_modules()
            triton.runtime.driver.set_active(driver)
            for source, metadata in seen:
                driver.launcher_cls(source, SimpleNamespace(**metadata))
        except NoModulesError as problem:
            return str(problem)
        except Exception as problem:  # whatever Triton raises when its C code does not compile, link or load
            return f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"
    return ""
