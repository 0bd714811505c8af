"""Indices of two segments a row, as prefill's sliding window needs them (kernel_spec A.9)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def expand_swa_index(pivots: torch.Tensor, width: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Row by row the first segment's indices, then the second's, then -1, up to `width` columns.

    Args:
        pivots: [n, 4] int32, contiguous: o1, l1, o2, l2 = begin and length of the two segments. A negative length
            counts as 0; longer segments are clipped; the sums wrap around as int32.
        width: columns.
        out: [n, width] int32 with contiguous rows; made when it is None.

    Returns:
        out: [n, width] int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("expand_swa_index")
    check.tensor("pivots", pivots, torch.int32, ("n", 4), rows="contiguous")
    check.whole_number("width", width, at_least=1)
    if out is None:
        out = torch.empty((check.size("n"), width), dtype=torch.int32, device=pivots.device)
    check.tensor("out", out, torch.int32, ("n", width))
    factory("expand_swa_index_tl")(width)(pivots, out)
    return out
