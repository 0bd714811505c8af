"""Cases of `kv_index_cat_tl` (kernel_spec A.9)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(generator: torch.Generator, *, rows: int, window: int, topk: int, swa: int, total: int) -> Call:
    left = torch.randint(-1, 2**31 - 1, (rows, window), dtype=torch.int32, generator=generator)
    right = torch.randint(0, 50_000, (rows, topk), dtype=torch.int32, generator=generator)
    lengths = torch.randint(0, topk + 1, (rows, 1), generator=generator)
    right[torch.arange(topk) >= lengths] = -1
    right[:1] = -1
    stride = -(-(window + topk) // 4) * 4
    buffer = torch.full((rows + 2, stride), 0x5A5A5A5A, dtype=torch.int32)[1 : rows + 1]
    arguments = [
        Argument("kv_index", left),
        Argument("kv_ca_index", right),
        Argument("left", buffer[:, :window], output=True),
        Argument("right", buffer[:, window : window + topk], output=True),
        Argument("total_k_swa", swa),
        Argument("total_k", total),
    ]
    return Call(arguments, ("int32", window, topk, stride))


def cases() -> list[Case]:
    """The real model's widths, odd ones, no rows, a row of -1 alone, sums that wrap around."""
    found = []
    for name, rows, window, topk, swa, total in (
        ("no-rows", 0, 128, 512, 3, 4),
        ("one-row", 1, 128, 512, 128, 1),
        ("model", 37, 128, 512, 4224, 4096),
        ("odd", 67, 20, 37, 128, 77),
        ("no-shift", 5, 4, 3, 0, 0),
        ("wraps", 9, 8, 33, 2**31 - 1, 2**31 - 1),
        ("16384x512", 16384, 128, 512, 20480, 16384),
        ("16384x1024", 16384, 128, 1024, 20480, 16384),
    ):
        make = partial(_make, rows=rows, window=window, topk=topk, swa=swa, total=total)
        found.append(Case("kv_index_cat_tl", name, make, large=rows > 1000, engine=topk == 512))
    return found
