"""Cases of `compute_seqlens_k_zos_tl` (kernel_spec A.6)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(generator: torch.Generator, *, r: int, rp: int, nextn: int, old: float) -> Call:
    def whole(low: int, high: int, size: int) -> torch.Tensor:
        return torch.randint(low, high, (size,), dtype=torch.int32, generator=generator)

    remap = whole(0, max(rp, 1), r)
    remap[torch.rand(r, generator=generator) >= old] = -1
    arguments = [
        Argument("seqlens_k", whole(1, 1_000_000, r), output=True),
        Argument("seqlens_q", whole(1, nextn + 2, r)),
        Argument("remap", remap),
        Argument("prev_num_accepted_tokens", whole(0, nextn + 1, rp)),
    ]
    return Call(arguments, (nextn,))


def cases() -> list[Case]:
    """Fresh sequences, old ones, both; none before, none now; an index beyond the batch before."""
    found = []
    for name, r, rp, nextn, old, engine in (
        ("mixed", 300, 200, 5, 0.5, True),
        ("old", 129, 4, 3, 1.0, False),
        ("fresh", 512, 512, 7, 0.0, False),
        ("none-before", 9, 0, 5, 0.0, False),
        ("beyond", 9, 0, 5, 1.0, False),
        ("none", 0, 3, 5, 0.5, False),
        ("no-drafts", 40, 40, 0, 0.5, False),
        ("decode", 256, 256, 5, 0.9, True),
    ):
        make = partial(_make, r=r, rp=rp, nextn=nextn, old=old)
        found.append(Case("compute_seqlens_k_zos_tl", name, make, engine=engine))
    return found
