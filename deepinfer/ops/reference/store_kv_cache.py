"""Reference of `store_kv_cache_tl` (kernel_spec A.15)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import KVCacheFormat
from deepinfer.ops.reference.quantize import quantize


def store(values: torch.Tensor, target: torch.Tensor, slots: torch.Tensor) -> None:
    """target[slot // block_size, slot % block_size] = row, for every row whose slot is in the cache.

    Args:
        values: [n, k].
        target: [num_blocks, block_size, k] of values' dtype, strided.
        slots: [n] int32; rows of slots outside of [0, num_blocks * block_size) are left out.
    """
    blocks, size = target.shape[:2]
    inside = (slots >= 0) & (slots < blocks * size)
    kept = slots[inside].long()
    if values.element_size() == 1:  # indexing is not defined for float8
        values, target = values.view(torch.uint8), target.view(torch.uint8)
    target[kept // size, kept % size] = values[inside]


@functools.cache
def store_kv_cache_tl(
    layout: KVCacheFormat,
    block_size: int,
    fp4_value_block_stride: int = 0,
    fp4_value_stride: int = 0,
    fp4_scale_stride: int = 0,
) -> Kernel:
    """Quantise rows and store them by slot. The strides are upstream's; the tensors' own are used."""

    def run(
        kv: torch.Tensor, kv_cache_value: torch.Tensor, kv_cache_sf: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        if layout.quantized_dtype is None:
            store(kv, kv_cache_value, slot_mapping)
            return
        form = (layout.quantized_dtype, layout.elements_per_sf, layout.round_sf, layout.sf_format or "")
        values, scales = quantize(kv, *form)
        store(values, kv_cache_value, slot_mapping)
        store(scales, kv_cache_sf, slot_mapping)

    return run
