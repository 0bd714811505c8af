"""Products with the model's weights in Triton (model_spec 2.3, 3.0, 3.3).

Weights are dequantised in registers, tile by tile. Tiles and the order of sums depend on the weight's sizes alone.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.product import BLOCK_K, BLOCK_M, WARPS, bf16_tile, fp8_tile, rounded_like

_WIDE = 8192
"""From so many outputs on there are programs enough for tiles of 128 columns."""


@triton.jit(do_not_specialize=["rows"])
def _fp8_linear(
    values, scales, weight, weight_scales, out, rows, outputs,
    DEPTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # The third axis is the group: its part of every row, and its rows of the weight.
    group = tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = row.to(tl.int64) * tl.num_programs(2) + group
    own = group.to(tl.int64) * outputs + column
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, DEPTH, BLOCK_K):
        a = fp8_tile(values, scales, part, row < rows, start, DEPTH, 1, BLOCK_M, BLOCK_K)
        b = fp8_tile(weight, weight_scales, own, column < outputs, start, DEPTH, 32, BLOCK_N, BLOCK_K)
        sums = tl.dot(a, tl.trans(b), sums)
    mask = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(out + part[:, None] * outputs + column[None, :], rounded_like(out, sums), mask=mask)


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


def _columns(outputs: int) -> int:
    return 128 if outputs >= _WIDE else 64


@functools.cache
def fp8_linear(o: int, k: int, out_dtype: torch.dtype) -> Kernel:
    """out = values * weight^T, both dequantised."""
    return _fp8(1, o, k)


@functools.cache
def fp8_grouped_linear(groups: int, o: int, k: int) -> Kernel:
    """out[:, g] = values[:, g] * weight[g]^T for each group."""
    return _fp8(groups, o, k)


def _fp8(groups: int, o: int, k: int) -> Kernel:
    columns = _columns(o)

    def run(
        values: torch.Tensor,
        scales: torch.Tensor,
        weight: torch.Tensor,
        weight_scales: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        rows = out.shape[0]
        launch(
            _fp8_linear, (cdiv(rows, BLOCK_M), cdiv(o, columns), groups),
            values.view(torch.uint8), scales, weight.view(torch.uint8), weight_scales, out, rows, o,
            DEPTH=k, BLOCK_M=BLOCK_M, BLOCK_N=columns, BLOCK_K=BLOCK_K, num_warps=WARPS, num_stages=3,
        )  # fmt: skip

    return run


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
