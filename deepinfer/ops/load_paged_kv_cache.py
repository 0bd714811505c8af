"""Gather ranges of a paged KV cache into consecutive rows (kernel_spec A.15)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.formats import QUANTIZED_DTYPES, KVCacheFormat, KVCacheTensors, split_kv_cache
from deepinfer.ops.store_kv_cache import resolve


def load_paged_kv_cache(
    kv_cache: torch.Tensor,
    load_segments: torch.Tensor,
    total_k: int,
    out: torch.Tensor | None = None,
    *,
    layout: KVCacheFormat | None = None,
    sf_format: str | None = None,
) -> KVCacheTensors:
    """For each segment (block, begin, end, row), tokens begin to end - 1 of the block become rows from `row` on.

    A block of -1, or any that the cache does not have, gives zeros. Tokens beyond a block and rows beyond the result
    are neither read nor written. Segments' rows must not overlap; rows of no segment keep what `out` held.

    Args:
        kv_cache: uint8 [num_blocks, block_size, 1, bytes_per_token], or bfloat16 [.., .., heads, d]; tokens of a
            block dense, blocks at any stride.
        load_segments: [S, 4] int32, contiguous.
        total_k: rows of the result, K.
        out: bfloat16 [K, ...], contiguous; only for formats that load as bfloat16.
        layout, sf_format: the format, or what tells formats with as many bytes a token apart.

    Returns:
        bf16_data [K, elements] (or `out`), dequantised, for main, SWA and bfloat16 caches. For index caches
        quantized_data, int8 [K, 64] or e4m3 [K, 128], and sf_data: int32 [K], four ue8m0 bytes, group 0 lowest, or
        float32 [K].

    Raises:
        TypeError, ValueError: an argument is not as said, or the format is ambiguous.
    """
    check = Arguments("load_paged_kv_cache")
    check.tensor("load_segments", load_segments, torch.int32, ("S", 4), rows="contiguous")
    check.whole_number("total_k", total_k, at_least=0)
    form = resolve(check, kv_cache, layout, sf_format)
    cache = split_kv_cache(kv_cache, form)
    value = cache.bf16_data if cache.quantized_data is None else cache.quantized_data
    assert value is not None
    sf = value if cache.sf_data is None else cache.sf_data
    device = kv_cache.device
    if form.do_cast:
        if out is None:
            out = torch.empty((total_k, form.elements), dtype=torch.bfloat16, device=device)
        check.tensor("out", out, torch.bfloat16, (total_k,) + (None,) * (out.dim() - 1), rows="contiguous")
        fits = out.numel() == total_k * form.elements
        check.require(fits, "out", f"must have {form.elements} values a row, not {list(out.shape)}")
        result = KVCacheTensors(None, None, out)
        kv = kv_sf = out.view(total_k, form.elements)
    else:
        check.require(out is None, "out", f"cannot be given for {form.note}: it loads as values and scales")
        kv = torch.empty((total_k, form.value_bytes), dtype=QUANTIZED_DTYPES[form.quantized_dtype or ""], device=device)
        kv_sf = torch.empty((total_k,), dtype=torch.float32 if form.sf_format == "fp32" else torch.int32, device=device)
        result = KVCacheTensors(kv, kv_sf, None)
    if len(load_segments) and total_k:
        factory("load_paged_kv_cache_tl")(form, kv_cache.shape[1])(load_segments, kv, kv_sf, value, sf)
    return result
