"""The one door through which Triton kernels are started.

It makes three things possible without a word in the kernels' own code: compiling every variant that a call would use
without running it (`compiling`), telling a kernel's launch from the host code around it (`launching`), and grids from
the device's multiprocessors. Triton itself is not imported here: whoever has a kernel has it already.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

Compiled = Callable[[Any, Any], None]
"""Called with (the jitted function, what its compilation gave) for every launch that was only compiled."""
_compiling: ContextVar[Compiled | None] = ContextVar("deepinfer_ops_compiling", default=None)
_depth: ContextVar[int] = ContextVar("deepinfer_ops_launch_depth", default=0)
_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_H200_MULTIPROCESSORS = 132


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start `kernel` over `grid` (1 to 3 sizes) on the current stream; a grid with a zero starts nothing.

    constants: compile-time arguments, and Triton's own options such as num_warps or enable_fp_fusion.

    Raises:
        ValueError: a size of the grid is negative or more than CUDA takes, which the interpreter would not notice.
    """
    if any(not 0 <= size <= most for size, most in zip(grid, _LARGEST_GRID, strict=False)) or not 1 <= len(grid) <= 3:
        raise ValueError(f"{getattr(kernel, '__name__', 'kernel')}: a grid of {grid} cannot be launched")
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


def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a device (78 on H20, 132 on H200); on a CPU 2, the interpreter's, and an H200's
    where kernels are compiled for one (`compiling`).
    """
    if device.type == "cuda":
        return _of_gpu(device)
    return 2 if _compiling.get() is None else _H200_MULTIPROCESSORS


@functools.cache
def _of_gpu(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def cdiv(value: int, divisor: int) -> int:
    """Ceil division."""
    return -(-value // divisor)


def next_power_of_2(value: int) -> int:
    """The smallest power of two >= value (1 for values below 1)."""
    return 1 << (max(value, 1) - 1).bit_length()
