"""Cases of `sum_smaller_probs_tl` (kernel_spec A.4)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.padding import padded
from deepinfer.ops.tolerance import Tolerance

INF = float("inf")


def _make(generator: torch.Generator, *, count: int, width: int, kind: str, reject: bool) -> Call:
    logprobs = torch.log_softmax(torch.randn(count, width, generator=generator) * 2, 1)
    if kind == "ones":
        logprobs = torch.full((count, width), -float(torch.tensor(float(width)).log()))
    if kind == "filtered":
        logprobs = torch.where(torch.rand(logprobs.shape, generator=generator) < 0.9, -INF, logprobs)
        logprobs[1], logprobs[2, 3] = -INF, float("nan")
    tokens = torch.randint(0, width, (count,), generator=generator, dtype=torch.int32)
    if reject:
        tokens[::3] = -1
        tokens[1::7] = width
    if kind == "filtered":
        tokens[2] = 3
    arguments = [
        Argument("logprobs", padded(logprobs)),
        Argument("sample_results", tokens),
        Argument("output", torch.full((count,), 77.0), output=True, tolerance=Tolerance(absolute=1e-5)),
    ]
    return Call(arguments, (width,))


def cases() -> list[Case]:
    """Random and equal rows, with and without rejected tokens, of one tile and of several."""
    found = [
        Case("sum_smaller_probs_tl", name, partial(_make, count=count, width=width, kind=kind, reject=reject))
        for name, count, width, kind, reject in (
            ("rand-4032", 5, 4032, "rand", False),
            ("rand-4032-reject", 7, 4032, "rand", True),
            ("ones-4032", 4, 4032, "ones", False),
            ("rand-33-reject", 9, 33, "rand", True),
            ("filtered-9001", 4, 9001, "filtered", False),
            ("none", 0, 64, "rand", False),
        )
    ]
    for kind in ("rand", "ones"):
        for reject in (False, True):
            make = partial(_make, count=256, width=129280, kind=kind, reject=reject)
            name = f"vocabulary-{kind}{'-reject' if reject else ''}"
            found.append(Case("sum_smaller_probs_tl", name, make, large=True, engine=kind == "ones"))
    return found
