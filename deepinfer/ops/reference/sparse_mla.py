"""Reference of attention over chosen keys (model_spec 3.3): float64, weights rounded relative to the largest."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import V41_FORMAT, KVCacheFormat, split_kv_cache
from deepinfer.ops.reference.quantize import dequantize

_ROWS = 32
"""Rows at a time, whose keys are copied together."""
Keys = Callable[[torch.Tensor], torch.Tensor]


def attend(q: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
    """q [n, h, d], each row's keys [n, k, d] and which of them it sees [n, k], sink [h] -> float64 [n, h, d]."""
    z = torch.einsum("nhd,nkd->nhk", q.double(), keys.double()) * scale
    z = z.masked_fill(~seen[:, None], -torch.inf)
    none = z.new_full((*z.shape[:2], 1), torch.finfo(z.dtype).min)
    largest = torch.cat((z, none), -1).amax(-1, keepdim=True)
    weights = torch.exp(z - largest)
    total = weights.sum(-1, keepdim=True) + torch.exp(sink.double()[:, None] - largest)
    summed = torch.einsum("nhk,nkd->nhd", weights.float().bfloat16().double(), keys.double())
    return torch.where(total == 0, 0.0, summed / total)


def _run(
    q: torch.Tensor, sets: list[tuple[torch.Tensor, int, Keys]], sink: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    """sets: lists of entries, how many entries there are, and what gives the keys of some of them."""
    for start in range(0, len(q), _ROWS):
        rows = slice(start, start + _ROWS)
        keys, seen = [], []
        for indices, end, read in sets:
            entry = indices[rows].long()
            inside = (entry >= 0) & (entry < end)
            own = q.new_zeros((*entry.shape, q.shape[-1]))
            own[inside] = read(entry[inside])
            keys.append(own)
            seen.append(inside)
        out[rows] = attend(q[rows], torch.cat(keys, 1), torch.cat(seen, 1), sink, scale).float()


def _reader(cache: torch.Tensor, layout: KVCacheFormat) -> tuple[int, Keys]:
    """How many entries a cache has, and what reads some of them as bfloat16."""
    blocks, size = cache.shape[:2]
    values, scales, _ = split_kv_cache(cache, layout)
    assert values is not None and scales is not None

    def read(entry: torch.Tensor) -> torch.Tensor:
        block, place = entry // size, entry % size
        codes = values.view(torch.uint8)[block, place].view(values.dtype)
        return dequantize(codes, scales.view(torch.uint8)[block, place].view(scales.dtype)).bfloat16()

    return blocks * size, read


@functools.cache
def sparse_attention_prefill(window: int, scale: float) -> Kernel:
    """Attention over rows of kv, the first `window` columns of the lists being a set of their own."""

    def run(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sink: torch.Tensor, out: torch.Tensor) -> None:
        _run(q, [(indices, len(kv), lambda entry: kv[entry])], sink, scale, out)

    return run


@functools.cache
def sparse_attention_decode(layout: KVCacheFormat | None, scale: float) -> Kernel:
    """Attention over entries of the window's cache and of another one of this format, None for no other."""

    def run(
        q: torch.Tensor,
        swa_cache: torch.Tensor,
        swa_indices: torch.Tensor,
        cache: torch.Tensor | None,
        indices: torch.Tensor | None,
        sink: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        sets = [(swa_indices, *_reader(swa_cache, V41_FORMAT))]
        if layout is not None and cache is not None and indices is not None:
            sets.append((indices, *_reader(cache, layout)))
        _run(q, sets, sink, scale, out)

    return run
