"""Cases of `store_kv_cache_tl` (kernel_spec A.15)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases import paged
from deepinfer.ops.formats import (
    FP4_INDEX_KV_FORMAT,
    FP8_FLOAT32_SF_INDEX_KV_FORMAT,
    MXFP8_INDEX_KV_FORMAT,
    V41_FORMAT,
    V41_FP4_FORMAT,
    KVCacheFormat,
    bf16_format,
)

NAMED = {
    "fp8-main": V41_FORMAT,
    "fp4-main": V41_FP4_FORMAT,
    "fp4-index": FP4_INDEX_KV_FORMAT,
    "fp8-index": FP8_FLOAT32_SF_INDEX_KV_FORMAT,
    "mxfp8-index": MXFP8_INDEX_KV_FORMAT,
    "bf16": bf16_format(128),
    "bf16-odd": bf16_format(144),
}
BLOCK_SIZES = {"fp8-main": (64, 133), "fp4-main": (64, 133)}


def _make(
    generator: torch.Generator,
    *,
    layout: KVCacheFormat,
    block_size: int,
    count: int,
    kind: str = "random",
    spoilt: bool = False,
    listed: tuple[int, ...] = (),
    stride: int = 0,
) -> Call:
    blocks = -(-(count + 2 * block_size) // block_size)
    kv = paged.rows(generator, count, layout.elements, stride or layout.elements)
    if spoilt:
        kv[0, 3], kv[2, 40], kv[3, :] = torch.nan, -torch.inf, torch.nan
    values, scales, plain = paged.cache(layout, blocks, block_size, block_stride=0)
    slots = paged.slots(generator, kind, count, blocks * block_size, block_size)
    if listed:
        slots = torch.tensor(listed, dtype=torch.int32)
    target = plain if values is None else values
    arguments = [
        Argument("kv", kv),
        Argument("kv_cache_value", target, output=True),
        Argument("kv_cache_sf", target if scales is None else scales, output=True),
        Argument("slot_mapping", slots),
    ]
    return Call(arguments, (layout, block_size))


def cases() -> list[Case]:
    """Every format and block size; slots outside of the cache, one row, none; rows with NaN and infinities."""
    found = []
    for name, layout in NAMED.items():
        for block_size in BLOCK_SIZES.get(name, (32, 64)):
            for count in (1, 37, 233, 67890):
                make = partial(_make, layout=layout, block_size=block_size, count=count)
                # The SWA ring, 134 rows of FP8, is what the model stores to in prefill.
                engine = name == "fp8-main" and count == 37
                large = count > 37
                found.append(Case("store_kv_cache_tl", f"{name}-b{block_size}-{count}", make, large, engine))
        for kind in ("continuous", "cross-page", "invalid"):
            make = partial(_make, layout=layout, block_size=8, count=21, kind=kind)
            found.append(Case("store_kv_cache_tl", f"{name}-{kind}", make))
        few = partial(_make, layout=layout, block_size=7)
        found.append(Case("store_kv_cache_tl", f"{name}-no-rows", partial(few, count=0)))
        found.append(Case("store_kv_cache_tl", f"{name}-nan", partial(few, count=5, spoilt=True)))
        found.append(Case("store_kv_cache_tl", f"{name}-one-of-three", partial(few, count=3, listed=(5, -1, -1))))
        found.append(Case("store_kv_cache_tl", f"{name}-strided", partial(few, count=9, stride=layout.elements + 48)))
    return found
