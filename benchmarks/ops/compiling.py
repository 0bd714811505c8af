"""Without a GPU: compile what the entries launch for a Hopper GPU, and count each kernel's variants and seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import triton

from benchmarks.ops.entry import Entry, Inputs
from benchmarks.ops.kernels import watching
from deepinfer.ops import dispatch
from deepinfer.ops.launch import compiling
from deepinfer.ops.variants import HopperDriver

ROWS = (1, 8, 64)
"""One, a multiple of 8 and one of 16: Triton tells them apart, and no other number of rows from these."""


@dataclass
class Count:
    """variants: of each kernel, over all entries. seconds: in Triton's compiler. problems: what did not compile."""

    variants: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def compile_entries(entries: Sequence[Entry]) -> Count:
    """Compile for sm_90a. For a process that does nothing else: Triton's driver is a stand-in afterwards."""
    triton.runtime.driver.set_active(HopperDriver())  # type: ignore[arg-type]  # what is used of DriverBase
    count = Count()

    def record(kernel: Any, compiled: Any) -> None:
        count.variants[f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"].add(compiled.hash)

    for entry in entries:
        for rows in sorted(set(ROWS) & set(entry.rows)):
            call = entry.make(rows, Inputs("cpu")).call
            try:
                with dispatch.using(dispatch.Settings("triton", strict=True)), compiling(record), watching() as seen:
                    kernel = dispatch.factory(entry.factory)(*call.parameters, **call.named)
                    kernel(*(one.value for one in call.arguments))
            except Exception as problem:  # a finding: the other entries go on
                text = " ".join(str(problem).split())[:300]
                count.problems.append(f"{entry.key}@{rows}: {type(problem).__name__}: {text}")
            else:
                count.seconds += seen.seconds
    return count
