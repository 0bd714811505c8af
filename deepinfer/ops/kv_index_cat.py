"""Indices of window and compressed keys side by side, for prefill's attention (kernel_spec A.9)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def kv_index_cat(kv_index: torch.Tensor, kv_ca_index: torch.Tensor, total_k_swa: int, total_k: int) -> torch.Tensor:
    """[kv_index | kv_ca_index + total_k_swa + total_k]; -1 stays -1 on the right, the left is copied as it is.

    Args:
        kv_index: [Q, w] int32, contiguous, w a multiple of 4.
        kv_ca_index: [Q, k] int32, contiguous.
        total_k_swa, total_k: rows that lie before the compressed ones in the buffer of keys; sums wrap as int32.

    Returns:
        [Q, w + k] int32; the row stride is w + k rounded up to a multiple of 4, so that rows are aligned to 16 bytes.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("kv_index_cat")
    check.tensor("kv_index", kv_index, torch.int32, ("Q", "w"), rows="contiguous")
    check.tensor("kv_ca_index", kv_ca_index, torch.int32, ("Q", "k"), rows="contiguous")
    rows, window, topk = (check.size(letter) for letter in ("Q", "w", "k"))
    check.require(window % 4 == 0, "kv_index", f"must have a multiple of 4 columns, not {window}")
    check.whole_number("total_k_swa", total_k_swa, at_least=0, at_most=2**31 - 1)
    check.whole_number("total_k", total_k, at_least=0, at_most=2**31 - 1)
    stride = -(-(window + topk) // 4) * 4
    out = torch.empty((rows, stride), dtype=torch.int32, device=kv_index.device)[:, : window + topk]
    kernel = factory("kv_index_cat_tl")("int32", window, topk, stride)
    kernel(kv_index, kv_ca_index, out[:, :window], out[:, window:], total_k_swa, total_k)
    return out
