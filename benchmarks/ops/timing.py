"""Measure calls: many in one CUDA graph where they are short, buffers taken in turn so that none stays in the cache.

What times and captures is behind `Clock`: the arithmetic here runs on any machine.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

Batch = Callable[[], object]
GRAPH_BELOW = 5e-3
"""Seconds a call: below it, launching from the host may be most of it, for a call may be of a dozen launches."""
BATCH_SECONDS = 1e-3
MOST_CALLS = 256
MOST_COPIES = 64
LEAST_SAMPLES, MOST_SAMPLES = 5, 50
SLOW = 0.5
"""Seconds: a call that takes longer is measured once."""


class CannotCapture(Exception):
    """A call does what no CUDA graph can hold, such as waiting for the device."""


class Clock(Protocol):
    """What a device needs to be timed."""

    def seconds(self, batch: Batch) -> float:
        """Run a batch; the seconds between its begin and its end on the device."""

    def captured(self, batch: Batch) -> Batch:
        """The batch as something that launches all of it at once. Raises CannotCapture."""


@dataclass(frozen=True)
class Timing:
    """seconds: of a call, the median of `samples`; best: the least. how: "graph", "stream" or "once".

    first_seconds: of the first call, on the host's clock, whatever was compiled in it included.
    """

    seconds: float
    best: float
    samples: int
    how: str
    first_seconds: float


class HostClock:
    """The host's clock, for a device that is done when a call returns."""

    def seconds(self, batch: Batch) -> float:
        begin = time.perf_counter()
        batch()
        return time.perf_counter() - begin

    def captured(self, batch: Batch) -> Batch:
        raise CannotCapture("there is no graph on a CPU")


class CudaClock:
    """CUDA events and graphs on the current device."""

    def seconds(self, batch: Batch) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        batch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def captured(self, batch: Batch) -> Batch:
        graph = torch.cuda.CUDAGraph()
        gc.disable()  # nothing may be freed while a graph is captured
        try:
            # A capture that fails may harm the process: what waits for the device is found before it.
            with _no_waiting():
                batch()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                batch()
        except Exception as problem:
            torch.cuda.synchronize()
            raise CannotCapture(str(problem).strip().partition("\n")[0]) from problem
        finally:
            gc.enable()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Within the block, a call of PyTorch's that waits for the device raises."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def copies(moved: int, footprint: int, cache: int, memory: int) -> int:
    """How many sets of buffers to take in turn: two caches' worth of traffic between two uses of one.

    Args:
        moved: bytes that a call moves. footprint: bytes of its buffers.
        cache: of the device's L2. memory: bytes that all sets may take together; one set may take more.
    """
    wanted = min(MOST_COPIES, max(2, math.ceil(2 * cache / max(moved, 1))))
    return max(1, min(wanted, memory // max(footprint, 1)))


def first(clock: Clock, call: Batch) -> float:
    """Seconds of a first call on the host's clock, until the device is done."""
    begin = time.perf_counter()
    clock.seconds(call)
    return time.perf_counter() - begin


def measure(clock: Clock, calls: Sequence[Batch], first_seconds: float, budget: float = 0.05) -> Timing:
    """Seconds of a call. calls: the same call on different buffers; the first of them has run.

    budget: seconds of device time to spend, more where `LEAST_SAMPLES` need it.
    """
    again = clock.seconds(calls[0])
    if again > SLOW:
        return Timing(again, again, 1, "once", first_seconds)
    for call in calls[1:]:
        clock.seconds(call)
    rough = max(clock.seconds(lambda: _run(calls)) / len(calls), 1e-9)
    rounds = max(1, min(math.ceil(BATCH_SECONDS / rough), MOST_CALLS) // len(calls)) if rough < BATCH_SECONDS else 1
    count = rounds * len(calls)
    some = [*itertools.islice(itertools.cycle(calls), count)]
    batch, how = _batch(clock, some, rough)
    if how == "graph" and clock.seconds(batch) / count > rough:
        # A large copy is slower as a part of a graph, and nobody would make it one.
        batch, how = partial(_run, some), "stream"
    taken: list[float] = []
    while len(taken) < MOST_SAMPLES and (len(taken) < LEAST_SAMPLES or sum(taken) * count < budget):
        taken.append(clock.seconds(batch) / count)
    return Timing(statistics.median(taken), min(taken), len(taken), how, first_seconds)


def _batch(clock: Clock, calls: Sequence[Batch], rough: float) -> tuple[Batch, str]:
    if rough < GRAPH_BELOW:
        try:
            return clock.captured(lambda: _run(calls)), "graph"
        except CannotCapture:
            pass
    return lambda: _run(calls), "stream"


def _run(calls: Sequence[Batch]) -> None:
    for call in calls:
        call()
