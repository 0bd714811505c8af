"""`gather_tl` in Triton (kernel_spec A.10)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2

_TYPES = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


@triton.jit
def _gather(x, index, y, n, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    picked = tl.load(index + row).to(tl.int64)
    inside = (picked >= 0) & (picked < n)
    value = tl.load(x + picked * x_stride + columns, mask=(columns < WIDTH) & inside, other=0)
    tl.store(y + row * WIDTH + columns, value, mask=columns < WIDTH)


@functools.cache
def gather_tl(D: int, dtype: torch.dtype, index_dtype: torch.dtype, x_stride: int, threads: int = 256) -> Kernel:
    """Y[i] = X[INDEX[i]], zeros where the index is out of range. D: elements a row; x_stride: X's row stride."""

    def run(x: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> None:
        wide, size = _widest(x, y, D)
        x, y = x.view(wide), y.view(wide)
        width = D * dtype.itemsize // size
        block = min(next_power_of_2(width), 4096)
        grid = (index.shape[0], cdiv(width, block))
        launch(_gather, grid, x, index, y, x.shape[0], x.stride(0), WIDTH=width, BLOCK=block)

    return run


def _widest(x: torch.Tensor, y: torch.Tensor, elements: int) -> tuple[torch.dtype, int]:
    """The widest integer that rows, strides and addresses are whole multiples of: fewer, wider loads."""
    size = x.element_size()
    facts = (elements * size, x.stride(0) * size, x.data_ptr(), y.data_ptr())
    width = next(width for width in _TYPES if all(fact % width == 0 for fact in facts))
    return _TYPES[max(width, size)], max(width, size)
