"""One forward's kernels, each with its calls, its time and its floor; and the forward as a whole."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from benchmarks.ops import timing
from benchmarks.step.call import Call
from benchmarks.step.floors import floor, wide_expert_counts
from benchmarks.step.record import watching
from benchmarks.step.setting import Setting, fitting
from benchmarks.step.traffic import Floor
from deepinfer.model.batch import Batch

IN_PLACE = (
    "hyper_step",
    "hyper_post",
    "engram_gate",
    "rotate",
    "convert_kv_index_tl",
    "restore_candidate_indices_inplace_tl",
)
"""They change what other kernels read: timed again and again, they are timed last."""
GRAPH_SECONDS = 0.05
"""Calls that take longer together are launched one by one: the device is behind the host then anyway."""
FILLS = 32
"""Times that the cache is filled before a time is taken: meanwhile the host launches, be it a graph of a thousand."""
PRODUCT = {"cuda": 8192, "cpu": 256}
Row = dict[str, Any]


class Cold:
    """A clock that begins with nothing of the calls' data in the device's cache."""

    def __init__(self, clock: timing.Clock, device: torch.device, cache_bytes: int) -> None:
        self.clock = clock
        self._waste = torch.empty(2 * cache_bytes, dtype=torch.uint8, device=device) if cache_bytes else None

    def seconds(self, batch: timing.Batch) -> float:
        """Seconds of a batch on the device. The host launches it ahead, while the cache is being filled."""
        if self._waste is None:
            return self.clock.seconds(batch)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        for _ in range(FILLS):
            self._waste.zero_()
        begin.record()
        batch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def measure(self, batch: timing.Batch, samples: int) -> float:
        """The median of some."""
        return statistics.median(self.seconds(batch) for _ in range(samples))


def product_speed(clock: timing.Clock, device: torch.device) -> float:
    """Operations a second of the device's own bfloat16 product, two for each multiplication and addition."""
    width = PRODUCT[device.type]
    left, right = (torch.randn(width, width, dtype=torch.bfloat16, device=device) for _ in range(2))
    out = torch.empty_like(left)

    def call() -> None:
        torch.mm(left, right, out=out)

    return 2 * width**3 / timing.measure(clock, [call], timing.first(clock, call)).best


def step(setting: Setting, batch: Batch, clock: Cold, speeds: tuple[float, float], samples: int) -> Row:
    """The figures of a forward.

    Args:
        speeds: bytes and operations a second that floors are of.
        samples: how often each time is taken.

    Raises:
        DeepInferError: the device has too little memory.
    """

    def forward() -> torch.Tensor:
        return setting.model.forward(batch, setting.caches)

    with fitting(setting.model.device):
        forward()  # compiles
        whole = _whole(forward, clock, samples, captured=batch.decode)
        floors = _floors(forward)
        rows: list[Row] = []
        # Of a chunk of prefill, a GPU holds what one kernel's calls take.
        together = batch.decode or setting.model.device.type == "cpu"
        for name, seconds, how in _kernels(forward, list(floors), clock, samples, together=together):
            own = floors[name]
            least = own.floor.seconds(*speeds)
            rows.append({"kernel": name, "calls": own.calls, "seconds": seconds, "how": how,
                         "bytes": own.floor.bytes, "operations": own.floor.operations,
                         "floor_seconds": least, "fraction": least / seconds if seconds else 0.0})  # fmt: skip
    rows.sort(key=lambda row: row["seconds"], reverse=True)
    experts = [count for one in floors.values() for count in one.experts]
    return {
        "kind": "decode" if batch.decode else "prefill",
        "rows": len(batch),
        **whole,
        "kernels_seconds": sum(row["seconds"] for row in rows),
        "floor_seconds": sum(row["floor_seconds"] for row in rows),
        "experts": experts,
        "kernels": rows,
    }


class _Sum:
    """Of a factory's calls. experts: of each routed product, how many experts it reads."""

    def __init__(self) -> None:
        self.calls, self.floor = 0, Floor(0)
        self.experts: list[int] = []

    def add(self, call: Call) -> None:
        self.calls += 1
        self.floor += floor(call.factory, call.parameters, call.arguments)
        if call.factory == "expert_linear":
            self.experts.append(int((call.arguments[3].diff() > 0).sum()))
        elif call.factory == "deep_gemm_experts":
            self.experts.append(int((wide_expert_counts(call.arguments[4], call.parameters[0]) > 0).sum()))


def _floors(forward: Callable[[], object]) -> dict[str, _Sum]:
    found: dict[str, _Sum] = {}
    with watching(lambda call: found.setdefault(call.factory, _Sum()).add(call)):
        forward()
    return found


def _kernels(
    forward: Callable[[], object], names: Sequence[str], clock: Cold, samples: int, *, together: bool
) -> Iterable[tuple[str, float, str]]:
    """(factory, seconds of all its calls in the forward, how).

    together: the calls of all factories are kept from one forward, for which there has to be memory. Otherwise one
    forward runs for each factory.
    """
    ordered = sorted(names, key=IN_PLACE.__contains__)
    for group in [ordered] if together else [[name] for name in ordered]:
        kept: dict[str, list[Call]] = {name: [] for name in group}

        def keep(call: Call, kept: dict[str, list[Call]] = kept) -> None:
            if call.factory in kept:
                kept[call.factory].append(call)

        with watching(keep):
            forward()
        for name in group:
            yield name, *timed(kept.pop(name), clock, samples)


def timed(calls: Sequence[Call], clock: Cold, samples: int) -> tuple[float, str]:
    """Seconds of all calls, one after the other: each layer's weights come from memory, as in the forward.

    Returns also how: "graph", or "stream" where they take long, or no graph can hold them.
    """

    def batch() -> None:
        for call in calls:
            call()

    rough = clock.seconds(batch)
    if rough < GRAPH_SECONDS:
        try:
            return clock.measure(clock.clock.captured(batch), samples), "graph"
        except timing.CannotCapture:
            pass
    return clock.measure(batch, samples), "stream"


def _whole(forward: Callable[[], object], clock: Cold, samples: int, *, captured: bool) -> Row:
    """The forward launched from the host, whose time counts, and in a CUDA graph where it can be captured: plans of
    prefill come from the host.
    """
    eager = statistics.median(clock.clock.seconds(forward) for _ in range(samples))
    found: Row = {"eager_seconds": eager, "graph_seconds": None, "graph_problem": ""}
    if not captured:
        return found | {"graph_problem": "a prefill's plan is made on the host"}
    try:
        return found | {"graph_seconds": clock.measure(clock.clock.captured(forward), samples)}
    except timing.CannotCapture as problem:
        return found | {"graph_problem": str(problem)}
