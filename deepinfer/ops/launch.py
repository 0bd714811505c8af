"""The one door through which Triton kernels are started.

It makes three things possible without a word in the kernels' own code: compiling every variant that a call would use
without running it (`compiling`), telling a kernel's launch from the host code around it (`launching`), and grids from
the device's multiprocessors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
import triton

Compiled = Callable[[Any, Any], None]
"""Called with (the jitted function, what its compilation gave) for every launch that was only compiled."""
_compiling: ContextVar[Compiled | None] = ContextVar("deepinfer_ops_compiling", default=None)
_depth: ContextVar[int] = ContextVar("deepinfer_ops_launch_depth", default=0)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start `kernel` over `grid` (1 to 3 sizes) on the current stream; a grid with a zero starts nothing.

    constants: compile-time arguments, and Triton's own options such as num_warps or enable_fp_fusion.
    """
    if 0 in grid:
        return
    record = _compiling.get()
    if record is not None:
        record(kernel, kernel.warmup(*arguments, grid=grid, **constants))
        return
    token = _depth.set(_depth.get() + 1)
    try:
        kernel[grid](*arguments, **constants)
    finally:
        _depth.reset(token)


def launching() -> bool:
    """Whether a kernel is being started right now: Triton's interpreter calls PyTorch there."""
    return _depth.get() > 0


@contextlib.contextmanager
def compiling(record: Compiled) -> Iterator[None]:
    """Within the block, kernels are compiled for the active driver's target and not run; outputs stay as they are."""
    token = _compiling.set(record)
    try:
        yield
    finally:
        _compiling.reset(token)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a device (78 on H20, 132 on H200); 2 in the interpreter, on a CPU."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def cdiv(value: int, divisor: int) -> int:
    """Ceil division."""
    return -(-value // divisor)


def next_power_of_2(value: int) -> int:
    """The smallest power of two >= value (1 for values below 1)."""
    return int(triton.next_power_of_2(max(value, 1)))
