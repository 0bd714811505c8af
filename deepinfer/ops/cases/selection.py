"""Cases of `select_topk` and `block_maxima` (model_spec 3.5, 3.6)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.tolerance import difference

_BF16, _FP32 = torch.bfloat16, torch.float32


def _make(
    generator: torch.Generator,
    *,
    n: int,
    width: int,
    k: int,
    dtype: torch.dtype = _FP32,
    stride: int = 0,
    kind: str = "normal",
    lengths: tuple[int, ...] = (),
) -> Call:
    """Rows with `lengths` first, then random ones, the last row whole."""
    scores = noise(generator, (n, max(stride, width)), dtype)[:, :width]
    if kind == "ties":
        scores.copy_((scores * 2).round())
    if kind == "signs" and n:
        scores.copy_((scores * 0.7).trunc())  # zeros of both signs, most of all
        scores[0] = torch.tensor([-0.0, 0.0], dtype=dtype).repeat(width)[:width]
    if kind == "spoilt" and n:
        scores[:, 1::3], scores[:, 2::7], scores[:, 5::11] = torch.nan, -torch.inf, torch.inf
        scores[0], scores[1], scores[2] = torch.nan, -torch.inf, torch.inf
        scores[3] = torch.finfo(dtype).min
    if kind == "climbing":
        scores.copy_(torch.arange(width) * 1e-3)
    counts = torch.randint(0, width + 1, (n,), generator=generator, dtype=torch.int32)
    counts[-1:] = width
    counts[: len(lengths)] = torch.tensor(lengths, dtype=torch.int32)[:n]
    arguments = [
        Argument("scores", scores),
        Argument("lengths", counts),
        Argument("columns", torch.full((n, k), 77, dtype=torch.int32), output=True),
    ]
    return Call(arguments, (k,))


def cases() -> list[Case]:
    """Ties, spoilt scores, lengths at every edge; one tile and up to four rounds of them; the model's sizes."""
    edges = (0, 1, 15, 16, 17, -5, 10**6)
    small: dict[str, dict[str, Any]] = {
        "no-rows": {"n": 0, "width": 64, "k": 16},
        "no-columns": {"n": 2, "width": 0, "k": 16, "lengths": (3, 0)},
        "edges": {"n": 10, "width": 700, "k": 16, "lengths": edges},
        "edges-bf16": {"n": 10, "width": 700, "k": 16, "dtype": _BF16, "lengths": edges},
        "ties": {"n": 7, "width": 333, "k": 50, "kind": "ties"},
        "ties-bf16": {"n": 7, "width": 333, "k": 50, "kind": "ties", "dtype": _BF16},
        "signs": {"n": 4, "width": 300, "k": 21, "kind": "signs", "lengths": (299,)},
        "spoilt": {"n": 8, "width": 600, "k": 33, "kind": "spoilt", "lengths": (600, 600, 600, 600)},
        "spoilt-bf16": {"n": 8, "width": 600, "k": 33, "kind": "spoilt", "dtype": _BF16, "lengths": (600,) * 4},
        "one-of-many": {"n": 3, "width": 5000, "k": 1, "stride": 5003},
        "more-than-there-are": {"n": 3, "width": 40, "k": 1100},
        "two-tiles": {"n": 4, "width": 16385, "k": 512, "kind": "ties", "lengths": (16384, 16383, 300)},
        "two-rounds": {"n": 3, "width": 50000, "k": 40, "stride": 50016, "lengths": (33000, 16384)},
        "two-rounds-climbing": {"n": 2, "width": 40000, "k": 700, "kind": "climbing", "dtype": _BF16},
        "four-rounds": {"n": 1, "width": 270001, "k": 4096, "kind": "ties"},
    }
    found = [Case("select_topk", name, partial(_make, **given)) for name, given in small.items()]
    return [*found, *_of_the_model(), *_maxima_cases()]


def _of_the_model() -> list[Case]:
    """512 entries of a row of logits (whole, or the compact row of 16384), 2048 of its blocks of 8."""
    found = []
    for k, dtype in ((512, _FP32), (2048, _FP32), (512, _BF16), (2048, _BF16)):
        word = "bf16" if dtype == _BF16 else "f32"
        for width in (2048, 8192, 16384, 32768):
            make = partial(_make, n=2, width=width, k=k, dtype=dtype, kind="ties")
            found.append(Case("select_topk", f"model-{k}-{width}-{word}", make, engine=True))
        for n, width in ((64, 16384), (2048, 65536), (3, 2**20), (256, 2**20)):
            make = partial(_make, n=n, width=width, k=k, dtype=dtype)
            found.append(Case("select_topk", f"model-{k}-{width}-{word}-{n}-rows", make, large=True))
    return found


def _judge(expected: Results, got: Results) -> str:
    """Scores but for the sign of a zero."""
    return difference("scores", expected["scores"] + 0.0, got["scores"] + 0.0)


def _maxima(
    generator: torch.Generator, *, n: int, width: int, size: int, stride: int = 0, lengths: tuple[int, ...] = ()
) -> Call:
    logits = noise(generator, (n, max(stride, width)))[:, :width]
    if n > 2 and width > 50:
        logits[0, :40] = -torch.inf
        logits[1, 0], logits[1, 3], logits[1, size + 1] = torch.inf, torch.nan, torch.nan
        logits[1, 2 * size : 3 * size] = torch.nan
        logits[2, :size] = torch.tensor([-0.0, 0.0]).repeat(size // 2)
    counts = torch.randint(0, width + 1, (n,), generator=generator, dtype=torch.int32)
    counts[: len(lengths)] = torch.tensor(lengths, dtype=torch.int32)[:n]
    count = -(-width // size)
    scores = torch.full((n, -(-count // 16) * 16), 77.0)[:, :count]
    arguments = [
        Argument("logits", logits),
        Argument("lengths", counts),
        Argument("scores", scores, output=True, tolerance=None),
        Argument("blocks", torch.full((n,), 77, dtype=torch.int32), output=True),
    ]
    return Call(arguments, (size,), judge=_judge)


def _maxima_cases() -> list[Case]:
    edges = (300, 299, 300, 0, 1, 8, 9, 16, 17, -3, 4000)
    found = []
    for name, n, width, size, stride, lengths in (
        ("no-rows", 0, 64, 8, 0, ()), ("no-columns", 2, 0, 8, 0, (0, 5)), ("edges-8", 13, 300, 8, 303, edges),
        ("edges-16", 13, 300, 16, 304, edges), ("two-tiles", 4, 8300, 8, 0, (8300, 8299, 4096)),
    ):  # fmt: skip
        make = partial(_maxima, n=n, width=width, size=size, stride=stride, lengths=lengths)
        found.append(Case("block_maxima", f"maxima-{name}", make))
    near = partial(_maxima, n=3, width=8192, size=8, lengths=(8192, 4099, 5))
    found.append(Case("block_maxima", "maxima-model", near, engine=True))
    for n, width in ((2048, 65536), (3, 2**20), (256, 2**20)):
        far = partial(_maxima, n=n, width=width, size=8)
        found.append(Case("block_maxima", f"maxima-model-{n}-{width}", far, large=True))
    return found
