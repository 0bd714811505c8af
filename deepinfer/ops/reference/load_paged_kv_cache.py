"""Reference of `load_paged_kv_cache_tl` (kernel_spec A.15)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import KVCacheFormat
from deepinfer.ops.reference.quantize import dequantize


@functools.cache
def load_paged_kv_cache_tl(
    layout: KVCacheFormat,
    block_size: int,
    fp4_value_block_stride: int = 0,
    fp4_value_stride: int = 0,
    fp4_scale_stride: int = 0,
) -> Kernel:
    """Copy segments of blocks to consecutive rows. The strides are upstream's; the tensors' own are used."""

    def run(
        load_segments: torch.Tensor,
        kv: torch.Tensor,
        kv_sf: torch.Tensor,
        kv_cache_value: torch.Tensor,
        kv_cache_sf: torch.Tensor,
    ) -> None:
        blocks, rows = kv_cache_value.shape[0], kv.shape[0]
        for block, begin, end, target in load_segments.tolist():
            first = max(begin, begin - target, 0)
            last = min(end, rows - target + begin, block_size)
            if first >= last:
                continue
            out = slice(target + first - begin, target + last - begin)
            if not 0 <= block < blocks:
                kv[out].view(torch.uint8).zero_()
                if not layout.do_cast:
                    kv_sf[out].zero_()
                continue
            values = kv_cache_value[block, first:last]
            if layout.quantized_dtype is None:
                kv[out] = values
                continue
            scales = kv_cache_sf[block, first:last]
            if layout.do_cast:
                kv[out] = dequantize(values, scales).bfloat16()
            else:
                kv[out].view(torch.uint8).copy_(values.view(torch.uint8))
                raw = scales.contiguous().view(torch.int32 if layout.sf_format == "ue8m0" else torch.float32)
                kv_sf[out] = raw.reshape(kv_sf[out].shape)

    return run
