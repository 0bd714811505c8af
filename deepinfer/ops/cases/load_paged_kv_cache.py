"""Cases of `load_paged_kv_cache_tl` (kernel_spec A.15)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases import paged
from deepinfer.ops.cases.store_kv_cache import BLOCK_SIZES, NAMED
from deepinfer.ops.formats import SF_DTYPES, KVCacheFormat


def segments(generator: torch.Generator, blocks: int, block_size: int, count: int) -> tuple[torch.Tensor, int]:
    """int32 [count, 4] of (block, begin, end, row), every tenth without a block, in any order; and the rows in all.

    A row stays free between every two.
    """
    begin = torch.randint(0, block_size + 1, (count,), generator=generator)
    end = begin + (torch.rand(count, generator=generator) * (block_size + 1 - begin)).long()
    begin[::3], end[::3] = 0, block_size
    block = torch.randint(0, blocks, (count,), generator=generator)
    block[3::10] = -1
    first = torch.cumsum(end - begin + 1, 0) - (end - begin)
    table = torch.stack((block, begin, end, first), 1).int()
    return table[torch.randperm(count, generator=generator)], int((end - begin + 1).sum()) + 1


def _make(
    generator: torch.Generator,
    *,
    layout: KVCacheFormat,
    block_size: int,
    count: int,
    blocks: int = 5,
    listed: tuple[tuple[int, int, int, int], ...] = (),
) -> Call:
    values, scales, plain = paged.cache(layout, blocks, block_size, generator=generator)
    if values is None:
        assert plain is not None
        # Any bytes are bfloat16, but NaN keeps no bits of its own in a comparison.
        plain.copy_(torch.randn(plain.shape, generator=generator))
        values = scales = plain
    elif layout.sf_format == "ue8m0" and layout.do_cast:
        assert scales is not None
        scales.copy_(scales % 40 + 110)
    assert scales is not None
    table, rows = segments(generator, blocks, block_size, count)
    if listed:
        table, rows = torch.tensor(listed, dtype=torch.int32), 20
    if layout.do_cast:
        kv = torch.full((rows, layout.elements), 9.0, dtype=torch.bfloat16)
        kv_sf = kv
    else:
        kv = torch.full((rows, layout.value_bytes), 0x25, dtype=torch.int8)
        kv = kv if layout.quantized_dtype == "e2m1" else kv.view(torch.float8_e4m3fn)
        dtype = torch.float32 if layout.sf_format == "fp32" else torch.int32
        assert scales.dtype == SF_DTYPES[layout.sf_format or ""]
        kv_sf = torch.full((rows,), 77, dtype=dtype)
    arguments = [
        Argument("load_segments", table),
        Argument("kv", kv, output=True),
        Argument("kv_sf", kv_sf, output=True),
        Argument("kv_cache_value", values),
        Argument("kv_cache_sf", scales),
    ]
    return Call(arguments, (layout, block_size))


OUTSIDE = ((5, 0, 4, 0), (-7, 0, 4, 4), (2, -3, 5, 9), (1, 3, 99, 17), (0, 2, 6, -2), (3, 5, 5, 8))
"""Blocks, places and rows that there are not."""


def cases() -> list[Case]:
    """Every format and block size; segments of any length, without a block, and outside of cache and output."""
    found = []
    for name, layout in NAMED.items():
        for block_size in BLOCK_SIZES.get(name, (32, 64)):
            make = partial(_make, layout=layout, block_size=block_size)
            engine = name in ("fp8-main", "fp4-main", "fp4-index")
            tag = f"{name}-b{block_size}"
            found.append(Case("load_paged_kv_cache_tl", f"{tag}-7", partial(make, count=7), engine=engine))
            found.append(Case("load_paged_kv_cache_tl", f"{tag}-1", partial(make, count=1)))
            large = partial(make, count=1200, blocks=2333)
            found.append(Case("load_paged_kv_cache_tl", f"{tag}-1200", large, large=True))
        few = partial(_make, layout=layout, block_size=7)
        found.append(Case("load_paged_kv_cache_tl", f"{name}-none", partial(few, count=0)))
        found.append(Case("load_paged_kv_cache_tl", f"{name}-outside", partial(few, count=0, listed=OUTSIDE)))
    return found
