"""Indices of chosen keys turned into cache slots, for decode's sparse attention (kernel_spec A.9)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def convert_kv_index(
    topk_idxs: torch.Tensor, block_size: int, context_lens: torch.Tensor, block_tables: torch.Tensor
) -> None:
    """In place: index x in a column below context_lens becomes block_tables[b, x // bs] * bs + x % bs, others -1.

    A column counts, not the value in it. An index that is negative or past its table becomes -1, and reads nothing.

    Args:
        topk_idxs: [b, s, k] int32, contiguous: in and out.
        block_size: entries a block.
        context_lens: [b, s] int32, contiguous: valid columns; below 0 is as 0, above k as k.
        block_tables: [b, n] int32, rows contiguous.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("convert_kv_index")
    check.tensor("topk_idxs", topk_idxs, torch.int32, ("b", "s", "k"), rows="contiguous")
    check.whole_number("block_size", block_size, at_least=1, at_most=2**31 - 1)
    check.tensor("context_lens", context_lens, torch.int32, ("b", "s"), rows="contiguous")
    check.tensor("block_tables", block_tables, torch.int32, ("b", "n"))
    kernel = factory("convert_kv_index_tl")(check.size("s"), check.size("k"), check.size("n"), block_size)
    kernel(topk_idxs, context_lens, block_tables)
