"""Several compiles at once, within the engine's processors and memory; one failure or Ctrl-C ends them together."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from build import cache
from build.containers import Engine
from build.errors import CellFailed
from build.plan import Cell
from build.wheels.cell import Stop, Stopped, lock_name, workplace
from build.wheels.fetch import told_space
from build.wheels.progress import Progress
from build.wheels.results import CellResult
from build.wheels.wheelhouse import Wheelhouse

OVERHEAD_GIB = 0.75  # Python with torch imported, beside the compilers
USABLE_MEMORY = 0.9
GOODBYE = 20.0
"""Seconds that killed compiles get to take their containers and scratch folders away."""


@dataclass(frozen=True)
class Capacity:
    """How much goes on at once: `workers` cells with `jobs` compiler processes each, within `memory_gib`."""

    workers: int
    jobs: int
    memory_gib: float

    @classmethod
    def of(cls, engine: Engine, cells: int, jobs: int | None) -> Capacity:
        """What the engine's machine allows; `jobs` caps the processes."""
        processors, memory = engine.capacity()
        return cls.share(cells, jobs or processors, memory * USABLE_MEMORY)

    @classmethod
    def share(cls, cells: int, processes: int, memory_gib: float) -> Capacity:
        """Divide compiler processes among cells.

        >>> Capacity.share(3, 2, 20.0)
        Capacity(workers=2, jobs=1, memory_gib=20.0)
        """
        workers = max(1, min(cells, processes))
        return cls(workers, max(1, processes // workers), memory_gib)

    def of_cell(self, cell: Cell) -> tuple[int, float]:
        """Compiler processes and memory (GiB) for one cell: fewer processes where memory would not suffice."""
        for jobs in range(self.jobs, 1, -1):
            need = cell.component.memory_gib * jobs + OVERHEAD_GIB
            if need <= self.memory_gib:
                return jobs, need
        # One process alone is tried even on a machine that is too small: the estimate is a peak.
        return 1, min(cell.component.memory_gib + OVERHEAD_GIB, self.memory_gib)


@dataclass(frozen=True)
class Started:
    """A compile begins and writes this log."""

    cell: Cell
    log: Path


@dataclass(frozen=True)
class Ended:
    """A cell is through, or was not begun (Stopped), or this machine cannot (another error)."""

    cell: Cell
    outcome: CellResult | BaseException


class Shop(Protocol):
    """Where cells are compiled: containers of a builder image, or this machine.

    builder: its name, for the record.  stop: ends what runs.
    compile: leaves the artefact below `scratch`; returns it with inside.py's record. Raises CellFailed, or Stopped.
    """

    @property
    def builder(self) -> str: ...
    @property
    def stop(self) -> Stop: ...
    def compile(
        self, cell: Cell, source: Path, scratch: Path, log: Path, *, jobs: int, memory_gib: float
    ) -> tuple[Path, dict[str, Any]]: ...


def record_of(cell: Cell) -> dict[str, object]:
    """What the wheelhouse writes down of every cell."""
    return {"cell": cell.name, "version": cell.component.version, "inputs": dict(cell.inputs)}


class Schedule:
    """The compiles of one target: worker threads take cells as processors and memory become free."""

    def __init__(
        self, shop: Shop, house: Wheelhouse, sources: Mapping[str, Path], capacity: Capacity, keep_going: bool
    ) -> None:
        self.shop = shop
        self.house = house
        self.sources = sources
        self.capacity = capacity
        self.keep_going = keep_going
        self.events: queue.SimpleQueue[Started | Ended] = queue.SimpleQueue()
        self.memory = threading.Condition()
        self.free = capacity.memory_gib

    def run(self, cells: Sequence[Cell]) -> dict[str, CellResult]:
        """Compile them all, the hungriest first; results by cell name."""
        waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        for cell in sorted(cells, key=lambda cell: -cell.component.memory_gib):
            waiting.put(cell)
        # Daemons: after Ctrl-C the process must end even if one of them waits for another build's lock.
        workers = [
            threading.Thread(target=self._work, args=(waiting,), daemon=True) for _ in range(self.capacity.workers)
        ]
        for worker in workers:
            worker.start()
        try:
            return self._collect(len(cells))
        except BaseException:
            self.shop.stop.now()
            deadline = time.monotonic() + GOODBYE
            for worker in workers:
                worker.join(max(0.0, deadline - time.monotonic()))
            raise

    def _collect(self, count: int) -> dict[str, CellResult]:
        results: dict[str, CellResult] = {}
        first_failure = ""
        with Progress() as progress:
            while len(results) < count:
                progress.tick()
                try:
                    event = self.events.get(timeout=0.25)
                except queue.Empty:
                    continue
                if isinstance(event, Started):
                    progress.started(event.cell.name, event.log)
                    continue
                result = _result(event, first_failure)
                results[event.cell.name] = result
                progress.finished(event.cell.name, _in_words(result))
                if result.status == "failed":
                    first_failure = first_failure or event.cell.name
        return results

    def _work(self, waiting: queue.SimpleQueue[Cell]) -> None:
        while True:
            try:
                cell = waiting.get_nowait()
            except queue.Empty:
                return
            start = time.monotonic()
            try:
                outcome: CellResult | BaseException = self._cell(cell)
            except CellFailed as problem:
                print(problem, file=sys.stderr, flush=True)
                seconds = round(time.monotonic() - start, 1)
                outcome = CellResult(cell, "failed", seconds, log=problem.log, reason=problem.cause or problem.what)
            except BaseException as problem:
                outcome = problem
            self.events.put(Ended(cell, outcome))
            if isinstance(outcome, CellResult) and outcome.status == "failed" and not self.keep_going:
                self.shop.stop.now()  # only now: the others' Stopped has to come after the reason for it

    def _cell(self, cell: Cell) -> CellResult:
        if self.shop.stop.asked.is_set():
            raise Stopped
        with cache.locked(lock_name(cell.key), waiting_for=f"compile of {cell.name}"):
            found = self.house.find(cell.key)
            if found is not None:  # another run was at it and has finished
                return CellResult(cell, "cached", artefact=found)
            jobs, need = self.capacity.of_cell(cell)
            with self._memory(need), told_space(cache.root()), workplace(cell) as scratch:
                return self._compile(cell, scratch, jobs, need)

    def _compile(self, cell: Cell, scratch: Path, jobs: int, memory_gib: float) -> CellResult:
        log = cache.folder("logs") / f"{cell.image}-{cell.component.name}.log"
        log.write_text(f"{cell.name} {cell.component.version}, key {cell.key}\n")
        self.events.put(Started(cell, log))
        start = time.monotonic()
        artefact, record = self.shop.compile(
            cell, self.sources[cell.name], scratch, log, jobs=jobs, memory_gib=memory_gib
        )
        seconds = round(time.monotonic() - start, 1)
        meta = {**record_of(cell), "seconds": seconds, "compile_seconds": record["seconds"]}
        meta |= {"modules": record["modules"], "tools": record["tools"], "builder": self.shop.builder}
        kept = self.house.put(cell.key, artefact, meta)
        return CellResult(cell, "built", seconds, kept, log)

    @contextlib.contextmanager
    def _memory(self, need: float) -> Iterator[None]:
        with self.memory:
            self.memory.wait_for(lambda: self.free >= need or self.shop.stop.asked.is_set())
            if self.shop.stop.asked.is_set():
                raise Stopped
            self.free -= need
        try:
            yield
        finally:
            with self.memory:
                self.free += need
                self.memory.notify_all()


def _result(event: Ended, first_failure: str) -> CellResult:
    """A cell's result; raises what is no failure of the cell."""
    if isinstance(event.outcome, Stopped):
        return CellResult(event.cell, "failed", reason=f"not compiled: {first_failure} failed (--keep-going goes on)")
    if isinstance(event.outcome, BaseException):
        raise event.outcome
    return event.outcome


def _in_words(result: CellResult) -> str:
    if result.status == "built":
        return f"compiled in {result.seconds:.0f} s"
    return "cached" if result.status == "cached" else f"failed, {result.reason}"
