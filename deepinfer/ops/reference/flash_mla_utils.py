"""Reference of `convert_kv_index_tl` (kernel_spec A.9)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def convert_kv_index_tl(s: int, k: int, n: int, block_size: int) -> Kernel:
    """x -> block_tables[b, x // bs] * bs + x % bs where its column is valid and x lies in the table, else -1."""

    def run(topk_idxs: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor) -> None:
        if n == 0:
            topk_idxs.fill_(-1)
            return
        valid = torch.arange(k, device=topk_idxs.device) < context_lens[:, :, None]
        page = topk_idxs // block_size
        valid &= (topk_idxs >= 0) & (page < n)
        picked = block_tables.gather(1, page.clamp(0, n - 1).flatten(1).long()).view_as(topk_idxs)
        topk_idxs.copy_(torch.where(valid, picked * block_size + topk_idxs % block_size, -1))

    return run
