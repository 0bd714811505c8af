"""`expand_swa_index_tl` in Triton (kernel_spec A.9)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.index_math import tile


@triton.jit(do_not_specialize=["n"])
def _expand_swa_index(pivots, output, n, width, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # Read as vectors of rows: as columns of the tile, every thread would read its rows once for each of its columns.
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    own = pivots + rows.to(tl.int64) * 4
    o1 = tl.load(own, mask=rows < n, other=0)[:, None]
    # Clipped first: what is too long can overflow no sum.
    l1 = tl.minimum(tl.maximum(tl.load(own + 1, mask=rows < n, other=0), 0), width)[:, None]
    o2 = tl.load(own + 2, mask=rows < n, other=0)[:, None]
    l2 = tl.minimum(tl.maximum(tl.load(own + 3, mask=rows < n, other=0), 0), width)[:, None]
    row = rows[:, None]
    value = tl.where(column < l1, o1 + column, tl.where(column < l1 + l2, o2 - l1 + column, -1))
    tl.store(output + row.to(tl.int64) * stride + column, value, mask=(row < n) & (column < width))


@functools.cache
def expand_swa_index_tl(width: int) -> Kernel:
    """output[:, col] = o1 + col for col < l1, o2 - l1 + col for col < l1 + l2, else -1; pivots: o1, l1, o2, l2."""

    def run(pivots: torch.Tensor, output: torch.Tensor) -> None:
        n = output.shape[0]
        rows, columns = tile(n, width)
        grid = (cdiv(n, rows), cdiv(width, columns))
        launch(_expand_swa_index, grid, pivots, output, n, width, output.stride(0), ROWS=rows, COLUMNS=columns)

    return run
