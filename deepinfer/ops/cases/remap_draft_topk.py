"""Cases of `remap_draft_topk_tl` (kernel_spec A.3, #33)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.verification import tokens


def _unique(generator: torch.Generator, rows: int, width: int, vocabulary: int) -> torch.Tensor:
    """[rows, width] int32 ids, each once a row: a random walk with a stride that the vocabulary has no factor of."""
    start = torch.randint(0, vocabulary, (rows, 1), generator=generator)
    orders = torch.stack([torch.randperm(width, generator=generator) for _ in range(8)])
    columns = orders.repeat(-(-rows // 8), 1)[:rows]
    return ((start + columns * 7) % vocabulary).int()


def _make(generator: torch.Generator, *, width: int, q: int, vocabulary: int, outside: bool) -> Call:
    p = q + 3
    index = _unique(generator, p, width, vocabulary)
    target = _unique(generator, q, width + 8, vocabulary)[:, :width]
    read = torch.randperm(p, generator=generator)[:q].int()
    # The draft token is one of the draft's row; half of the target rows have a part of that row in common with it.
    drafts = index[:, 0].clone()
    half = q // 2
    start = index[read[:half].long()]
    target[:half] = start.roll(width // 3, 1) if width > 2 else start
    if vocabulary > 4 * width:
        target[:half, width // 2 :] = (target[:half, width // 2 :] + 7 * width) % vocabulary
    drafts[torch.rand(p, generator=generator) < 0.1] = -1
    if outside and q:
        read[::4], read[1::7] = -3, p
        index[:, width // 2], target[:, width // 3] = vocabulary, -5
    aligned = torch.full((q, width + 4), 77.0)[:, :width]
    arguments = [
        Argument("draft_topk_index", index),
        Argument("draft_topk_logprobs", -torch.rand(p, width, generator=generator)),
        Argument("draft_token_ids_pool", drafts),
        Argument("target_topk_index", target),
        Argument("read_rows", read),
        Argument("aligned_logprobs", aligned, output=True),
        Argument("draft_local_ids", torch.full((q,), -77, dtype=torch.int32), output=True),
        Argument("identity_rows", tokens(generator, q), output=True),
    ]
    return Call(arguments, (width, vocabulary))


def cases() -> list[Case]:
    """Widths from 1 to the largest, odd ones, rows outside of the pool and ids outside of the vocabulary."""
    found = []
    for name, width, q, vocabulary, outside, large in (
        ("64", 64, 9, 1009, False, False),
        ("dense", 64, 5, 64, False, False),
        ("odd", 37, 11, 1009, False, False),
        ("single", 1, 5, 11, False, False),
        ("outside", 50, 12, 1009, True, False),
        ("two-tiles", 5000, 3, 129281, False, False),
        ("none", 64, 0, 1009, False, False),
        ("1024", 1024, 6, 129280, False, False),
        ("widest", 16384, 40, 129280, True, True),
        ("large-64", 64, 1536, 129280, False, True),
        ("large-1024", 1024, 256, 129280, False, True),
        ("large-4096", 4096, 1536, 129280, True, True),
    ):
        make = partial(_make, width=width, q=q, vocabulary=vocabulary, outside=outside)
        found.append(Case("remap_draft_topk_tl", f"remap-{name}", make, large=large, engine=name == "1024"))
    return found
