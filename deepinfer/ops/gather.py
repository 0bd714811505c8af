"""Rows of a table by index (kernel_spec A.10)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

INDEX_TYPES = (torch.int32, torch.int64)


def gather(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """out[i] = x[index[i]]; zeros where the index is negative or >= n.

    Args:
        x: [n, ...] of any dtype; rows contiguous, their stride free.
        index: [m] int32 or int64.
        out: [m, ...] like a row of x, contiguous; made when it is None.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("gather")
    check.tensor("index", index, INDEX_TYPES, ("m",), rows="contiguous")
    check.require(isinstance(x, torch.Tensor) and x.dim() >= 1, "x", "must be a tensor with at least one dimension")
    check.tensor("x", x, x.dtype, (None,) * x.dim(), rows="any")
    row = tuple(x.shape[1:])
    check.require(x[:1].is_contiguous(), "x", f"must have contiguous rows; its strides are {x.stride()}")
    if out is None:
        out = torch.empty((check.size("m"), *row), dtype=x.dtype, device=x.device)
    check.tensor("out", out, x.dtype, ("m", *row), rows="contiguous")
    width = out.element_size() * (out[0].numel() if out.shape[0] else 0)
    if width == 0:
        return out
    n = x.shape[0]
    source = x.as_strided((n, width // x.element_size()), (x.stride(0), 1)).view(torch.int8)
    target = out.view(out.shape[0], -1).view(torch.int8)
    factory("gather_tl")(width, torch.int8, index.dtype, source.stride(0))(source, index, target)
    return out
