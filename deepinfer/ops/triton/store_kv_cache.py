"""`store_kv_cache_tl` in Triton (kernel_spec A.15)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import KVCacheFormat
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.quantize import quantize, widen
from deepinfer.ops.triton.rows import locate, one_a_row, tile


@triton.jit
def store_row_values(
    values, cache, inside, block, place, block_stride, TOKEN: tl.constexpr, COUNT: tl.constexpr, NEAR: tl.constexpr
):
    """values [ROWS, >= COUNT] to their tokens' places in a cache, its strides in elements; others write nothing.

    inside, block, place: [ROWS, 1], as `locate` gives them. TOKEN: elements between two tokens of a block.
    NEAR: how many neighbours a thread computed and shall store; more would have to come from other threads first.
    """
    column = tl.max_contiguous(tl.arange(0, values.shape[1])[None, :], [1, NEAR])
    at = block * block_stride + place.to(tl.int64) * TOKEN
    tl.store(cache + at + column, values, mask=inside & (column < COUNT))


@triton.jit(do_not_specialize=["rows", "end"])
def _store(
    kv, value, sf, slots, rows, end, kv_stride, value_block, sf_block,
    WIDTH: tl.constexpr, FMT: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, SF: tl.constexpr,
    BLOCK: tl.constexpr, VALUE_TOKEN: tl.constexpr, SF_TOKEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    live = row < rows
    slot = one_a_row(slots, tl.program_id(0) * ROWS, rows, 1, ROWS)
    inside, block, place = locate(slot, live, end, BLOCK)
    x = tl.load(kv + row.to(tl.int64) * kv_stride + column, mask=inside & (column < WIDTH), other=0.0)
    if FMT == "":
        store_row_values(x, value, inside, block, place, value_block, VALUE_TOKEN, WIDTH, 8)
    else:
        codes, scales, _ = quantize(widen(x), FMT, GROUP, ROUND, SF, ROWS, COLUMNS)
        BYTES: tl.constexpr = codes.shape[1]
        store_row_values(codes, value, inside, block, place, value_block, VALUE_TOKEN, BYTES, 8 * BYTES // COLUMNS)
        store_row_values(scales, sf, inside, block, place, sf_block, SF_TOKEN, COLUMNS // GROUP, 1)


def as_bytes(value: torch.Tensor) -> torch.Tensor:
    """Tensors of narrow types as uint8: kernels compute their bits."""
    return value.view(torch.uint8) if value.element_size() == 1 else value


@functools.cache
def store_kv_cache_tl(
    layout: KVCacheFormat,
    block_size: int,
    fp4_value_block_stride: int = 0,
    fp4_value_stride: int = 0,
    fp4_scale_stride: int = 0,
) -> Kernel:
    """Quantise rows and store them by slot. The strides are upstream's; the tensors' own are used."""
    width = layout.elements
    rows, columns, warps = tile(width)
    constants = {
        "WIDTH": width, "FMT": layout.quantized_dtype or "", "GROUP": layout.elements_per_sf, "ROUND": layout.round_sf,
        "SF": layout.sf_format or "", "BLOCK": block_size, "ROWS": rows, "COLUMNS": columns,
        "num_warps": warps, "enable_fp_fusion": False,
    }  # fmt: skip

    def run(
        kv: torch.Tensor, kv_cache_value: torch.Tensor, kv_cache_sf: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        value, sf = as_bytes(kv_cache_value), as_bytes(kv_cache_sf)
        launch(
            _store, (cdiv(kv.shape[0], rows),), kv, value, sf, slot_mapping,
            kv.shape[0], value.shape[0] * block_size, kv.stride(0), value.stride(0), sf.stride(0),
            VALUE_TOKEN=value.stride(1), SF_TOKEN=sf.stride(1), **constants,
        )  # fmt: skip

    return run
