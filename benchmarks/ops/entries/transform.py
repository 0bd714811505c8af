"""Queries and keys: norm, rotation, cast, and the way into a cache (kernel_spec A.13, its production uses)."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ops.entry import Entry, Inputs, Make, Work, reads, size, work, writes
from benchmarks.ops.model import BLOCK_SIZE, CONTEXT, EPS, HEAD_DIM, HEADS, INDEX_DIM, INDEX_HEADS, ROPE_DIM, SWA_BLOCK
from deepinfer.ops.formats import (
    FP4_INDEX_KV_FORMAT,
    V41_FORMAT,
    V41_FP4_FORMAT,
    KVCacheFormat,
    alloc_kv_cache,
    split_kv_cache,
)

BF16, F32 = torch.bfloat16, torch.float32
LARGEST_SMALL = 126 * 2**20
"""Bytes of input up to which a batch counts as small."""


def _make(
    heads: int,
    dim: int,
    *,
    norm: bool = False,
    layout: KVCacheFormat | None = None,
    block: int = 0,
    fmt: str = "",
    group: int = 0,
    stage: str = "transform",
    bf16: bool = False,
) -> Make:
    """layout: stored into a cache of this format with blocks of `block` tokens. fmt, group: the cast without one."""
    fmt, group = (layout.quantized_dtype or "", layout.elements_per_sf) if layout else (fmt, group)
    scales = layout.sf_format if layout else "ue8m0" if fmt else ""

    def make(rows: int, inputs: Inputs) -> Work:
        x = inputs.normal(rows, heads, dim)
        table = inputs.normal(CONTEXT, ROPE_DIM, dtype=F32)
        out = inputs.empty(rows, heads, dim, dtype=BF16) if bf16 else None
        quantised = fmt and not layout
        packed = 2 if fmt == "e2m1" else 1
        quant = inputs.empty(rows, heads, dim // packed, dtype=torch.int8) if quantised else None
        if quant is not None and fmt == "e4m3":
            quant = quant.view(torch.float8_e4m3fn)
        sf = inputs.empty(rows, heads, dim // group, dtype=torch.uint8) if quantised else None
        views: tuple[Any, Any] = (None, None)
        slots = None
        stored = 0
        if layout:
            blocks = -(-2 * rows // block)
            cache = split_kv_cache(alloc_kv_cache(layout, blocks, block, inputs.device), layout)
            views = (cache.quantized_data, cache.sf_data)
            slots = inputs.distinct(rows, blocks * block)
            stored = rows * layout.bytes_per_token
        weight, positions = inputs.normal(dim) if norm else None, inputs.integers(0, CONTEXT, rows)
        arguments = [
            *reads(x=x, weight=weight, positions=positions, cos=table[:, : ROPE_DIM // 2]),
            *reads(sin=table[:, ROPE_DIM // 2 :]),
            *writes(out_bf16=out, out_quant=quant, out_sf=sf, cache_quant=views[0], cache_sf=views[1]),
            *reads(slot_mapping=slots),
        ]
        named = {
            "do_norm": norm, "norm_eps": EPS, "do_rope": True, "rotary_dim": ROPE_DIM, "rope_offset": dim - ROPE_DIM,
            "positions_dtype": "int32", "is_neox": False, "conjugate": False, "do_hadamard": False,
            "hadamard_scale": 1.0, "cast_fmt": fmt, "num_per_channels": group,
            "round_sf": bool(fmt) and scales != "e4m3", "sf_format": scales, "return_bf16": bf16, "bf16_stage": stage,
            "return_quant": bool(quantised), "cache_layout": layout, "block_size": block,
            "small_batch": size(x) <= LARGEST_SMALL,
        }  # fmt: skip
        moved = size(x, out, quant, sf, weight, positions, slots) + rows * ROPE_DIM * 4 + stored
        return work(arguments, (heads, dim), named, moved=moved)

    return make


def _entry(name: str, make: Make) -> Entry:
    return Entry("fused_norm_rope_hadamard_cast_store_kvcache_tl", name, make, copy_bound=True)


ENTRIES = [
    _entry("q", _make(HEADS, HEAD_DIM, bf16=True)),
    _entry("index-q-fp4", _make(INDEX_HEADS, INDEX_DIM, fmt="e2m1", group=32)),
    _entry("swa-store", _make(1, HEAD_DIM, norm=True, layout=V41_FORMAT, block=SWA_BLOCK)),
    _entry(
        "main-store-fp4",
        _make(1, HEAD_DIM, norm=True, layout=V41_FP4_FORMAT, block=BLOCK_SIZE, stage="norm", bf16=True),
    ),
    _entry("index-k-store", _make(1, INDEX_DIM, norm=True, layout=FP4_INDEX_KV_FORMAT, block=BLOCK_SIZE)),
    _entry("swa-prefill", _make(1, HEAD_DIM, norm=True, fmt="e4m3", group=32, stage="cast_back", bf16=True)),
]
