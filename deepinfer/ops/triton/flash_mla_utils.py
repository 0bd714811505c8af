"""`convert_kv_index_tl` in Triton (kernel_spec A.9)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.index_math import joined, looked_up, lookup_tile, quarters, shift, split


@triton.jit
def _slot(x, table, n, BLOCK_SIZE: tl.constexpr, SHIFT: tl.constexpr):
    page, place = split(x, BLOCK_SIZE, SHIFT)
    valid = (x >= 0) & (page < n)
    slot = looked_up(table + page, valid, 0) * BLOCK_SIZE + place
    return tl.where(valid, slot, -1)


@triton.jit(do_not_specialize=["rows", "s", "n"])
def _convert_kv_index(
    topk_idxs,
    context_lens,
    block_tables,
    rows,
    s,
    k,
    n,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    in_tile = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    length = tl.load(context_lens + in_tile, mask=in_tile < rows, other=0)[:, None]
    row = in_tile[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    own = (row < rows) & (column < k)
    index = topk_idxs + row.to(tl.int64) * k + column
    x = tl.load(index, mask=own, other=-1)
    table = block_tables + (row // s).to(tl.int64) * table_stride
    first, second, third, fourth = quarters(tl.where(column < length, x, -1), ROWS, COLUMNS)
    slots = joined(
        _slot(first, table, n, BLOCK_SIZE, SHIFT), _slot(second, table, n, BLOCK_SIZE, SHIFT),
        _slot(third, table, n, BLOCK_SIZE, SHIFT), _slot(fourth, table, n, BLOCK_SIZE, SHIFT), ROWS, COLUMNS,
    )  # fmt: skip
    tl.store(index, slots, mask=own)


@functools.cache
def convert_kv_index_tl(s: int, k: int, n: int, block_size: int) -> Kernel:
    """x -> block_tables[b, x // bs] * bs + x % bs where its column is valid and x lies in the table, else -1."""

    def run(topk_idxs: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor) -> None:
        total = topk_idxs.shape[0] * s
        rows, columns = lookup_tile(k)
        launch(
            _convert_kv_index,
            (cdiv(total, rows), cdiv(k, columns)),
            topk_idxs,
            context_lens,
            block_tables,
            total,
            s,
            k,
            n,
            block_tables.stride(0),
            BLOCK_SIZE=block_size,
            SHIFT=shift(block_size),
            ROWS=rows,
            COLUMNS=columns,
            launch_pdl=True,
        )

    return run
