"""Cases of `compute_seqlens_q_by_confidence_rates_tl` (kernel_spec A.5)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(generator: torch.Generator, *, r: int, nextn: int, total_q: int, old: float, kind: str) -> Call:
    before = max(r, 2)
    remap = torch.randint(0, before, (r,), dtype=torch.int32, generator=generator)
    remap[torch.rand(r, generator=generator) >= old] = -1
    rates = torch.rand(before, nextn, generator=generator) * 0.8 + 0.1
    if kind == "ties":
        rates = (rates * 4).round() / 4
        rates[::3, nextn // 2] = -0.0
    if kind == "odd":
        rates[1::4, 0], rates[2::4, nextn - 1], rates[3::4] = torch.nan, torch.inf, 1.5
        remap[::7] = before
    arguments = [
        Argument("remap", remap),
        Argument("prev_confidence_rates", rates),
        Argument("cum_rates", torch.full((r, nextn), 77.0), output=True),
        Argument("seqlens_q", torch.full((r,), 77, dtype=torch.int32), output=True),
        Argument("total_q", total_q),
    ]
    return Call(arguments, (nextn,))


def cases() -> list[Case]:
    """The spec's sizes, with and without sequences of the batch before; ties; NaN; budgets of none and of all."""
    found = []
    for r, nextn, total_q in (
        *((32, 7, 32), (32, 7, 256), (4, 3, 8), (16, 7, 40), (64, 5, 128), (128, 3, 200)),
        *((256, 7, 300), (8, 1, 8), (1, 5, 4)),
    ):
        for old in (0.0, 0.7):
            make = partial(_make, r=r, nextn=nextn, total_q=total_q, old=old, kind="plain")
            engine = nextn == 5 and r == 64
            name = f"{r}x{nextn}-{total_q}{'-old' * bool(old)}"
            found.append(Case("compute_seqlens_q_by_confidence_rates_tl", name, make, engine=engine))
    for name, r, nextn, total_q, old, kind, large in (
        ("ties", 60, 5, 150, 0.9, "ties", False),
        ("odd", 60, 5, 150, 0.9, "odd", False),
        ("33-drafts", 5, 33, 70, 1.0, "plain", False),
        ("too-few", 9, 5, 3, 1.0, "plain", False),
        ("too-many", 9, 5, 300, 1.0, "plain", False),
        ("none", 0, 5, 8, 1.0, "plain", False),
        ("1024x7", 1024, 7, 3000, 0.9, "plain", True),
        ("1024x7-ties", 1024, 7, 3000, 0.9, "ties", True),
    ):
        make = partial(_make, r=r, nextn=nextn, total_q=total_q, old=old, kind=kind)
        found.append(Case("compute_seqlens_q_by_confidence_rates_tl", name, make, large=large))
    return found
