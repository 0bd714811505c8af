"""The same entries by each of the ways to their index logits: `python -m tests.ops.index_bits` (TRITON_INTERPRET=1).

What is chosen in a prompt has to be chosen in a decode step: the logits of an entry must have the same bits whether its
key lies in a row or in pages, among all entries or among candidates, and whichever rows stand beside its own.
"""

from __future__ import annotations

import json

import torch

from deepinfer.ops import indexer
from deepinfer.ops.cases.indexer import codes
from deepinfer.ops.dispatch import Settings, using
from deepinfer.ops.formats import FP4_INDEX_KV_FORMAT, alloc_kv_cache, split_kv_cache


def problems(device: str, rows: int = 5, pages: int = 3, size: int = 64, heads: int = 32) -> list[str]:
    """In which ways logits differ from those of rows in one batch."""
    generator = torch.Generator().manual_seed(6)
    entries = pages * size
    keys, key_scales = (one.to(device) for one in codes(generator, entries))
    queries = [*codes(generator, rows, heads), torch.randn(rows, heads, generator=generator).bfloat16()]
    queries = [one.to(device) for one in queries]
    cache = alloc_kv_cache(FP4_INDEX_KV_FORMAT, pages, size, device)
    parts = split_kv_cache(cache, FP4_INDEX_KV_FORMAT)
    assert parts.quantized_data is not None and parts.sf_data is not None
    # The pages lie in the cache in reverse.
    parts.quantized_data.copy_(keys.view(pages, size, -1).flip(0))
    parts.sf_data.copy_(key_scales.view(pages, size, -1).flip(0))
    tables = torch.arange(pages, dtype=torch.int32, device=device).flip(0).repeat(rows, 1)
    starts = torch.zeros(rows, dtype=torch.int32, device=device)
    lengths = entries - torch.arange(rows, dtype=torch.int32, device=device)
    blocks = torch.arange(entries // 8, dtype=torch.int32, device=device).repeat(rows, 1)
    with using(Settings("triton", strict=True)):
        expected = indexer.index_logits(*queries, keys, key_scales, starts, lengths, entries)
        ways = {
            "paged": indexer.paged_index_logits(*queries, cache, tables, lengths, entries),
            "candidates": indexer.candidate_index_logits(*queries, keys, key_scales, starts, blocks, 8, lengths),
            "paged candidates": indexer.paged_candidate_index_logits(*queries, cache, tables, blocks, 8, lengths),
        }
        for row in range(rows):
            own = slice(row, row + 1)
            alone = [one[own] for one in (*queries, starts, lengths)]
            ways[f"row {row} alone"] = indexer.index_logits(*alone[:3], keys, key_scales, *alone[3:], entries)
    found = []
    for way, logits in ways.items():
        beside = expected[int(way.split()[1]) :][:1] if len(logits) == 1 else expected
        if not logits.view(torch.int32).equal(beside.view(torch.int32)):
            found.append(f"{way}: {int((logits != beside).sum())} of {logits.numel()} logits differ")
    if not expected.isfinite().any():
        found.append("no logit is finite")
    return found


if __name__ == "__main__":
    print(json.dumps(problems("cpu")))
