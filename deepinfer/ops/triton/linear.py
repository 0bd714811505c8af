"""Products with the model's weights in Triton (model_spec 2.3, 3.0, 3.3).

The order of sums depends on the weight's sizes alone: tiles that depend on the number of rows and on the device too
give the same bits.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, multiprocessors
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.product import BLOCK_M, WARPS, bf16_tile, rounded_like
from deepinfer.ops.triton.weight_product import ROW_COLUMNS, Tiles, decode_row, decoded, weight_sums

_WIDE = 8192
"""From so many outputs on there are programs enough for tiles of 128 columns."""
_FEW = Tiles(m=64, n=16, k=256, warps=4, stages=4)
_SOME = Tiles(m=64, n=64, k=128, warps=4, stages=4)
_MANY = Tiles(m=128, n=128, k=64, warps=8, stages=4)


@triton.jit(do_not_specialize=["groups"])
def _decode_rows(values, scales, x, groups, COLUMNS: tl.constexpr):
    await_inputs()
    decode_row(values, scales, x, tl.program_id(0).to(tl.int64), tl.program_id(1), groups, False, COLUMNS)


@triton.jit(do_not_specialize=["rows", "units"])
def _fp8_linear(
    x, weight, weight_scales, out, rows, outputs, units,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    await_inputs()
    # The third axis is the group: its part of every row, and its rows of the weight.
    group = tl.program_id(2)
    column = tl.program_id(0) * M + tl.arange(0, M)
    row = tl.program_id(1) * N + tl.arange(0, N)
    part = row.to(tl.int64) * tl.num_programs(2) + group
    # A group begins at a multiple of 32 rows, where there are several.
    depth = units * (K if EVEN else 32)
    first = group.to(tl.int64) * outputs
    sums = weight_sums(
        x, part, row < rows, weight + first * (depth // 4), weight_scales + first // 32 * (depth // 32),
        column, column < outputs, units, False, 32, EVEN, AHEAD, M, N, K,
    )  # fmt: skip
    mask = (row < rows)[None, :] & (column < outputs)[:, None]
    tl.store(out + part[None, :] * outputs + column[:, None], rounded_like(out, sums), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _bf16_linear(
    x, weight, out, rows, outputs,
    ACCUMULATE: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    wide = row.to(tl.int64)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, DEPTH, BLOCK_K):
        a = bf16_tile(x, wide, row < rows, start, DEPTH, BLOCK_K)
        b = bf16_tile(weight, column.to(tl.int64), column < outputs, start, DEPTH, BLOCK_K)
        sums = tl.dot(a, tl.trans(b), sums)
    mask = (row < rows)[:, None] & (column < outputs)[None, :]
    target = out + wide[:, None] * outputs + column[None, :]
    if ACCUMULATE:
        sums += tl.load(target, mask=mask, other=0.0)
    tl.store(target, rounded_like(out, sums), mask=mask)


def fp8_tiles(rows: int, outputs: int, groups: int, processors: int) -> Tiles:
    """For products of so many rows, with so many outputs a group, on a device of so many multiprocessors.

    The largest tiles do the most with what is read, but take the longest one by one: not where more than half of the
    multiprocessors would have none.
    """
    if rows <= _FEW.n:
        return _FEW
    programs = groups * cdiv(outputs, _MANY.m) * cdiv(rows, _MANY.n)
    return _SOME if rows <= _SOME.n or 2 * programs < processors else _MANY


@functools.cache
def fp8_linear(o: int, k: int, out_dtype: torch.dtype) -> Kernel:
    """out = values * weight^T, both dequantised."""
    return _fp8(1, o, k)


@functools.cache
def fp8_grouped_linear(groups: int, o: int, k: int) -> Kernel:
    """out[:, g] = values[:, g] * weight[g]^T for each group."""
    return _fp8(groups, o, k)


def _fp8(groups: int, o: int, k: int) -> Kernel:
    def run(
        values: torch.Tensor,
        scales: torch.Tensor,
        weight: torch.Tensor,
        weight_scales: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        rows = out.shape[0]
        tiles = fp8_tiles(rows, o, groups, multiprocessors(values.device))
        x = decoded(rows * groups, k, values.device)
        launch(
            _decode_rows, (rows * groups, cdiv(k, ROW_COLUMNS)), values.view(torch.uint8), scales, x, k // 32,
            COLUMNS=ROW_COLUMNS, launch_pdl=True,
        )  # fmt: skip
        launch(
            _fp8_linear, (cdiv(o, tiles.m), cdiv(rows, tiles.n), groups),
            x, weight.view(torch.int32), weight_scales, out, rows, o, tiles.units(o, k), **tiles.constants(o, k),
        )  # fmt: skip

    return run


def _columns(outputs: int) -> int:
    return 128 if outputs >= _WIDE else 64


@functools.cache
def bf16_linear(k: int, out_dtype: torch.dtype, accumulate: bool) -> Kernel:
    """out = x * weight^T, or out += it in float32."""

    def run(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        rows, outputs = out.shape
        columns = _columns(outputs)
        launch(
            _bf16_linear, (cdiv(rows, BLOCK_M), cdiv(outputs, columns)), x, weight, out, rows, outputs,
            ACCUMULATE=accumulate, DEPTH=k, BLOCK_M=BLOCK_M, BLOCK_N=columns, BLOCK_K=64,
            num_warps=WARPS, num_stages=4,
        )  # fmt: skip

    return run
