"""`kv_index_cat_tl` in Triton (kernel_spec A.9)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.index_math import tile


@triton.jit(do_not_specialize=["n", "shift", "left_tiles"])
def _kv_index_cat(
    kv_index,
    kv_ca_index,
    left,
    right,
    n,
    shift,
    left_tiles,
    window,
    topk,
    stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    part = tl.program_id(1)
    if part < left_tiles:
        column = (part * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        inside = (row < n) & (column < window)
        tl.store(left + row * stride + column, tl.load(kv_index + row * window + column, mask=inside), mask=inside)
    else:
        column = ((part - left_tiles) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        inside = (row < n) & (column < topk)
        value = tl.load(kv_ca_index + row * topk + column, mask=inside)
        tl.store(right + row * stride + column, tl.where(value == -1, -1, value + shift), mask=inside)


@functools.cache
def kv_index_cat_tl(dtype: str, window_size: int, topk_tokens: int, out_stride: int) -> Kernel:
    """left = kv_index; right = kv_ca_index + total_k_swa + total_k, where -1 stays. Both are views of one buffer."""
    if dtype != "int32":
        raise ValueError(f"kv_index_cat_tl: dtype must be 'int32', not {dtype!r}")

    def run(
        kv_index: torch.Tensor,
        kv_ca_index: torch.Tensor,
        left: torch.Tensor,
        right: torch.Tensor,
        total_k_swa: int,
        total_k: int,
    ) -> None:
        n = left.shape[0]
        rows, columns = tile(n, min(window_size, topk_tokens) or max(window_size, topk_tokens))
        left_tiles = cdiv(window_size, columns)
        launch(
            _kv_index_cat,
            (cdiv(n, rows), left_tiles + cdiv(topk_tokens, columns)),
            kv_index,
            kv_ca_index,
            left,
            right,
            n,
            _as_int32(total_k_swa + total_k),
            left_tiles,
            window_size,
            topk_tokens,
            out_stride,
            ROWS=rows,
            COLUMNS=columns,
        )

    return run


def _as_int32(value: int) -> int:
    """The value modulo 2^32, as an int32: the type of a launch's argument must not depend on its value."""
    return (value + 2**31) % 2**32 - 2**31
