"""Quantise rows and store them in a paged KV cache (kernel_spec A.15)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.formats import KVCacheFormat, bf16_format, infer_format, split_kv_cache


def resolve(
    check: Arguments, kv_cache: torch.Tensor, layout: KVCacheFormat | None, sf_format: str | None = None
) -> KVCacheFormat:
    """The format of a cache argument; a bfloat16 cache says its own."""
    check.tensor("kv_cache", kv_cache, (torch.uint8, torch.bfloat16), (None,) * 4, rows="any")
    if layout is None and kv_cache.dtype == torch.bfloat16:
        layout = bf16_format(kv_cache.shape[2] * kv_cache.shape[3])
    return infer_format(kv_cache, sf_format=sf_format, layout=layout)


def store_kv_cache(
    kv: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor, *, layout: KVCacheFormat | None = None
) -> None:
    """Write each row of `kv`, in the cache's format, to its slot: block slot // block_size, place slot % block_size.

    Rows whose slot is negative or beyond the cache are left out; all other bytes of the cache stay as they are. Of
    two rows with one slot either may win. A NaN does not count towards its group's scale; see
    `ops/reference/quantize.py` for what it becomes.

    Args:
        kv: [n, ...] bfloat16, rows contiguous at any stride, as many values a row as the format has.
        kv_cache: uint8 [num_blocks, block_size, 1, bytes_per_token], or bfloat16 [.., .., heads, d]; tokens of a
            block dense, blocks at any stride.
        slot_mapping: [n] int32, contiguous.
        layout: the format; None infers it from the bytes a token.

    Raises:
        TypeError, ValueError: an argument is not as said, or the format is ambiguous.
    """
    check = Arguments("store_kv_cache")
    check.require(isinstance(kv, torch.Tensor) and kv.dim() >= 2, "kv", "must be a tensor [n, ...]")
    check.tensor("kv", kv, torch.bfloat16, ("n",) + (None,) * (kv.dim() - 1), rows="any")
    check.require(kv[:1].is_contiguous(), "kv", f"must have contiguous rows; its strides are {kv.stride()}")
    check.tensor("slot_mapping", slot_mapping, torch.int32, ("n",), rows="contiguous")
    form = resolve(check, kv_cache, layout)
    width = kv[0].numel() if len(kv) else form.elements
    check.require(width == form.elements, "kv", f"must have {form.elements} values a row for {form.note}, not {width}")
    cache = split_kv_cache(kv_cache, form)
    if not len(kv):
        return
    rows = kv.as_strided((len(kv), width), (kv.stride(0), 1))
    value = cache.bf16_data if cache.quantized_data is None else cache.quantized_data
    sf = value if cache.sf_data is None else cache.sf_data
    factory("store_kv_cache_tl")(form, kv_cache.shape[1])(rows, value, sf, slot_mapping)
