"""Reference of `kv_index_cat_tl` (kernel_spec A.9)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def kv_index_cat_tl(dtype: str, window_size: int, topk_tokens: int, out_stride: int) -> Kernel:
    """left = kv_index; right = kv_ca_index + total_k_swa + total_k, where -1 stays. Both are views of one buffer."""
    if dtype != "int32":
        raise ValueError(f"kv_index_cat_tl: dtype must be 'int32', not {dtype!r}")

    def run(
        kv_index: torch.Tensor,
        kv_ca_index: torch.Tensor,
        left: torch.Tensor,
        right: torch.Tensor,
        total_k_swa: int,
        total_k: int,
    ) -> None:
        left.copy_(kv_index)
        shifted = (kv_ca_index.long() + total_k_swa + total_k).int()
        right.copy_(torch.where(kv_ca_index == -1, kv_ca_index, shifted))

    return run
