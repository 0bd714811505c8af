"""Cases of `random_sampling_tl` (kernel_spec A.2)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.padding import padded

_SEEDS = (0, 1, 12345, 2**63 - 1, 2**63, 2**64 - 1)


def _rows(generator: torch.Generator, count: int, width: int, kind: str) -> torch.Tensor:
    if kind == "uniform":
        return torch.full((count, width), 1.0 / width)
    probs = torch.softmax(torch.randn(count, width, generator=generator) * 3, 1)
    if kind == "sparse":
        probs = torch.where(torch.rand(probs.shape, generator=generator) < 0.1, probs, 0.0)
        probs[:, -1] = 1e-4
    if kind == "edges":
        probs[0], probs[1, 3], probs[2, 5], probs[3], probs[4, 1] = 0.0, float("nan"), float("inf"), 0.0, 1.9999
        probs[3, width - 1] = 1.0
        probs[4, 2] = 1.9999
        probs[5], probs[6] = 0.0, -1.0
        probs[5, 7], probs[6, 9] = 1e-9, 0.25
        probs[7] = 1e-10
    return probs


def _make(generator: torch.Generator, *, count: int, width: int, kind: str, nextn: bool) -> Call:
    positions = torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator, dtype=torch.int32)
    seeds = torch.tensor([_SEEDS[row % len(_SEEDS)] for row in range(count)], dtype=torch.uint64)
    arguments = [
        Argument("probs", padded(_rows(generator, count, width, kind))),
        Argument("seq_seeds", seeds),
        Argument("sample_positions", positions),
        Argument("out", torch.full((count,), 77, dtype=torch.int32), output=True),
    ]
    return Call(arguments, (width, nextn))


def cases() -> list[Case]:
    """Widths of one and of many columns a lane; rows that need many attempts, rows without an answer."""
    found = []
    for name, count, width, kind, nextn, large in (
        ("softmax-33", 8, 33, "softmax", False, False),
        ("sparse-1000", 6, 1000, "sparse", True, False),
        ("uniform-8192", 4, 8192, "uniform", False, False),
        ("softmax-9000", 4, 9000, "softmax", False, False),
        ("edges-40", 8, 40, "edges", False, False),
        ("edges-8200", 8, 8200, "edges", False, False),
        ("none", 0, 64, "softmax", False, False),
        ("one-column", 3, 1, "uniform", False, False),
        ("vocabulary", 256, 129280, "softmax", False, True),
        ("vocabulary-nextn", 256, 129280, "sparse", True, True),
        ("vocabulary-uniform", 256, 129280, "uniform", False, True),
        ("many-1024", 4096, 1024, "sparse", False, True),
    ):
        make = partial(_make, count=count, width=width, kind=kind, nextn=nextn)
        found.append(Case("random_sampling_tl", name, make, large=large, engine=name.startswith("vocabulary")))
    return found
