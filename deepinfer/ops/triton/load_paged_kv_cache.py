"""`load_paged_kv_cache_tl` in Triton (kernel_spec A.15)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import KVCacheFormat
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.quantize import decode, decode_e4m3, decode_ue8m0, narrow, spread
from deepinfer.ops.triton.store_kv_cache import as_bytes

_ELEMENTS = 4096
_WARPS = 4


@triton.jit(do_not_specialize=["rows", "blocks", "block_size"])
def _load(
    segments, kv, kv_sf, value, sf, rows, blocks, block_size, value_block, sf_block,
    BYTES: tl.constexpr, SCALES: tl.constexpr, OUT: tl.constexpr, FMT: tl.constexpr, SF: tl.constexpr,
    CAST: tl.constexpr, VALUE_TOKEN: tl.constexpr, SF_TOKEN: tl.constexpr, KV_ROW: tl.constexpr, SF_ROW: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    segment = segments + tl.program_id(0).to(tl.int64) * 4
    block, begin = tl.load(segment), tl.load(segment + 1)
    end, target = tl.load(segment + 2), tl.load(segment + 3)
    place = begin + tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    row = target.to(tl.int64) + (place - begin)
    live = (place >= 0) & (place < end) & (place < block_size) & (row >= 0) & (row < rows)
    read = live & (block >= 0) & (block < blocks)
    column = tl.arange(0, COLUMNS)[None, :]
    group = tl.arange(0, SLOTS)[None, :]
    at = value + block.to(tl.int64) * value_block + place.to(tl.int64) * VALUE_TOKEN
    # Of what it dequantises, a thread loads what it stores as eight bfloat16: the hint saves an exchange of values.
    NEAR: tl.constexpr = 8 * BYTES // OUT if CAST else 16
    codes = tl.load(at + tl.max_contiguous(column, [1, NEAR]), mask=read & (column < BYTES), other=0)
    to = kv + row * KV_ROW
    if SCALES > 0:
        at_sf = sf + block.to(tl.int64) * sf_block + place.to(tl.int64) * SF_TOKEN
        scales = tl.load(at_sf + group, mask=read & (group < SCALES), other=0)
        if CAST:
            numbers = decode_e4m3(scales) if SF == "e4m3" else decode_ue8m0(scales)
            wide = tl.arange(0, OUT)[None, :]
            plain = decode(codes, FMT, ROWS, OUT) * spread(numbers, ROWS, OUT, OUT // SLOTS)
            tl.store(to + wide, narrow(plain), mask=live)
        else:
            tl.store(to + column, codes, mask=live & (column < BYTES))
            tl.store(kv_sf + row * SF_ROW + group, scales, mask=live & (group < SCALES))
    else:
        tl.store(to + column, codes, mask=live & (column < BYTES))


@functools.cache
def load_paged_kv_cache_tl(
    layout: KVCacheFormat,
    block_size: int,
    fp4_value_block_stride: int = 0,
    fp4_value_stride: int = 0,
    fp4_scale_stride: int = 0,
) -> Kernel:
    """Copy segments of blocks to consecutive rows. The strides are upstream's; the tensors' own are used."""
    plain = layout.quantized_dtype is None
    width = layout.elements if plain or layout.do_cast else layout.value_bytes
    rows = max(min(_ELEMENTS // next_power_of_2(width), next_power_of_2(block_size)), 1)

    def run(
        load_segments: torch.Tensor,
        kv: torch.Tensor,
        kv_sf: torch.Tensor,
        kv_cache_value: torch.Tensor,
        kv_cache_sf: torch.Tensor,
    ) -> None:
        value, sf = as_bytes(kv_cache_value), as_bytes(kv_cache_sf)
        out = kv if layout.do_cast else as_bytes(kv)
        raw_sf = kv_sf
        if layout.sf_format == "ue8m0" and not layout.do_cast:
            raw_sf = (kv_sf.unsqueeze(1) if kv_sf.dim() == 1 else kv_sf).view(torch.uint8)
        launch(
            _load, (load_segments.shape[0], cdiv(block_size, rows)), load_segments, out, raw_sf, value, sf,
            out.shape[0], value.shape[0], value.shape[1], value.stride(0), sf.stride(0),
            BYTES=value.shape[2], SCALES=layout.scales, OUT=layout.elements,
            FMT=layout.quantized_dtype or "", SF=layout.sf_format or "", CAST=layout.do_cast and not plain,
            VALUE_TOKEN=value.stride(1), SF_TOKEN=sf.stride(1), KV_ROW=out.stride(0), SF_ROW=raw_sf.stride(0),
            ROWS=rows, COLUMNS=next_power_of_2(value.shape[2]), SLOTS=max(next_power_of_2(layout.scales), 1),
            num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    return run
