"""`confidence_head_fused_tl` and `dflash_input_store_tl` in Triton (kernel_spec A.8)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.index_math import eighth
from deepinfer.ops.triton.quantize import narrow, widen

_PRODUCTS = 1024


@triton.jit
def _products(x, weight, OFFSET: tl.constexpr, WIDTH: tl.constexpr, total, COLUMNS: tl.constexpr):
    """total + x * weight, column block by column block: each lane adds its own columns, first to last."""
    for begin in tl.static_range(0, WIDTH, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        own = widen(tl.load(x + column, mask=column < WIDTH, other=0.0))
        total += own * widen(tl.load(weight + OFFSET + column, mask=column < WIDTH, other=0.0))
    return total


@triton.jit(do_not_specialize=["x0_stride8", "out_stride"])
def _confidence_head(
    x0,
    x1,
    weight,
    out,
    temp,
    x0_stride8,
    x1_stride,
    out_stride,
    N_EMBED: tl.constexpr,
    MARKOV_RANK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    # One program a row, so that the order of the sum cannot depend on how many rows there are.
    row = tl.program_id(0).to(tl.int64)
    total = _products(x0 + row * x0_stride8 * 8, weight, 0, N_EMBED, tl.zeros([COLUMNS], tl.float32), COLUMNS)
    if MARKOV_RANK > 0:
        total = _products(x1 + row * x1_stride, weight, N_EMBED, MARKOV_RANK, total, COLUMNS)
    y = tl.div_rn(tl.sum(total, 0), temp)
    # Comparisons, as those leave a NaN what it is.
    y = tl.where(y > 60.0, 60.0, tl.where(y < -60.0, -60.0, y))
    tl.store(out + row * out_stride, tl.div_rn(1.0, 1.0 + tl.exp(-y)))


@functools.cache
def confidence_head_fused_tl(n_embed: int, markov_rank: int, has_markov_emb: bool) -> Kernel:
    """out = sigmoid(clamp(([x0 | x1] . weight) / temp, -60, 60)), float32."""
    columns = min(next_power_of_2(n_embed), _PRODUCTS)
    warps = max(columns // 256, 1)  # 16 bytes a thread
    constants = {"N_EMBED": n_embed, "MARKOV_RANK": markov_rank if has_markov_emb else 0, "COLUMNS": columns}

    def run(x0: torch.Tensor, x1: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, temp: float) -> None:
        strides = (eighth(x0), x1.stride(0) if x1 is not None else 0, out.stride(0))
        arguments = (x0, x1 if has_markov_emb else None, weight, out, temp, *strides)
        launch(_confidence_head, (x0.shape[0],), *arguments, **constants, num_warps=warps, launch_pdl=True)

    return run


@triton.jit
def _mean_of_streams(
    x, out, n_embed, row_stride, stream_stride, out_stride, STREAMS: tl.constexpr, COLUMNS: tl.constexpr
):
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = column < n_embed
    source = x + row * row_stride + column
    value = tl.load(source, mask=own)
    if STREAMS > 1:
        total = widen(value)
        for stream in tl.static_range(1, STREAMS):
            total += widen(tl.load(source + stream * stream_stride, mask=own))
        value = narrow(total * (1 / STREAMS))
    tl.store(out + row * out_stride + column, value, mask=own)


@functools.cache
def dflash_input_store_tl(n_embed: int, hc_mult: int) -> Kernel:
    """out = bf16(sum over the streams in float32, first to last, * (1 / hc_mult)); one stream is copied."""
    columns = min(next_power_of_2(n_embed), 1024)

    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        grid = (x.shape[0], cdiv(n_embed, columns))
        strides = (x.stride(0), x.stride(1), out.stride(0))
        launch(_mean_of_streams, grid, x, out, n_embed, *strides, STREAMS=hc_mult, COLUMNS=columns, launch_pdl=True)

    return run
