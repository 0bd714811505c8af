"""Cases of the n-gram memory's kernels (model_spec 3.10): the real model's sizes, a tiny one's, and edges."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.tolerance import Tolerance

MULTIPLIERS = (76632096046245, 4839876093313, 35959672319349, 73987337458391)
"""Of the real model's layer 1."""


def _rows(
    generator: torch.Generator,
    *,
    tokens: int,
    heads: int = 8,
    length: int = 4,
    vocabulary: int = 99092,
    table: int = 16_000_057,
    wide: bool = False,
    wrapping: bool = False,
) -> Call:
    ngrams = torch.randint(0, vocabulary, (tokens, length), generator=generator)
    ngrams[1::5, 2:] = 2
    ngrams[2::7, 0] = -1
    columns = heads * (length - 1)
    # Odd numbers about as large as the model's primes do as well.
    primes = table + 2 * torch.arange(columns)
    multipliers = torch.tensor([MULTIPLIERS[place % 4] for place in range(length)])
    if wrapping:
        multipliers = multipliers * 0x1E3779B97F4A7C15
    arguments = [
        Argument("ngrams", ngrams if wide else ngrams.int()),
        Argument("multipliers", multipliers),
        Argument("primes", primes),
        Argument("offsets", primes.cumsum(0) - primes),
        Argument("rows", torch.full((tokens, columns), 77), output=True),
    ]
    return Call(arguments, (length, columns))


def _gather(generator: torch.Generator, *, tokens: int, width: int = 256, picks: int = 24, known: int = 1000) -> Call:
    table = torch.randint(0, 256, (known, width), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (known, width // 32), dtype=torch.uint8, generator=generator)
    rows = torch.randint(0, known, (tokens, picks), generator=generator)
    rows[1::4] = -1
    rows[2::5, ::3] = known
    rows[3::6, 1] = -(2**40)
    values = torch.full((tokens, picks * width), 0x77, dtype=torch.uint8).view(torch.float8_e4m3fn)
    arguments = [
        Argument("table", table.view(torch.float8_e4m3fn)),
        Argument("table_scales", scales),
        Argument("rows", rows),
        Argument("values", values, output=True),
        Argument("scales", torch.full((tokens, picks * width // 32), 0x77, dtype=torch.uint8), output=True),
    ]
    return Call(arguments, (width,))


def _gate(
    generator: torch.Generator,
    *,
    tokens: int,
    width: int = 5120,
    skip: bool = False,
    in_place: bool = False,
    kind: str = "normal",
) -> Call:
    trunk = noise(generator, (tokens, 4, width), torch.bfloat16)
    kv = noise(generator, (tokens, 5 * width), torch.bfloat16)
    gains = 1 + 0.1 * noise(generator, (4, width))
    if kind == "normal":
        _away_from_zero(trunk, kv, gains)
    if kind == "zeros":
        trunk[::2], kv[::3] = 0, 0
        trunk[1, 0], kv[1, :width] = 1, 1
    if kind == "spoilt":
        trunk[1, 2, 3], kv[2, width], kv[3, 4 * width] = torch.nan, torch.inf, torch.nan
    flags = torch.rand(tokens, generator=generator) < 0.4 if skip else None
    out = trunk if in_place else torch.full_like(trunk, 9.0)
    arguments = [
        Argument("trunk", trunk),
        Argument("kv", kv),
        Argument("gains", gains),
        Argument("skip", flags),
        Argument("out", out, output=True, tolerance=Tolerance(relative=2**-7, absolute=2e-5)),
    ]
    return Call(arguments, (width, 1e-20))


def _away_from_zero(trunk: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor) -> None:
    """Make the streams whose product with their key is next to zero the key itself.

    The gate is the sigmoid of the product's signed root: next to zero a float32 sum's last bits are in its fifth
    decimal, and of the product's very sign. Any order of summation is right there, and each gives another gate.
    """
    width = trunk.shape[2]
    keys = kv.view(len(kv), 5, width)[:, :4]
    for first in range(0, len(trunk), 512):
        part, key = trunk[first : first + 512], keys[first : first + 512]
        x, y = part.float(), key.float()
        t = (x * y * gains).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)) * width**0.5
        near = t.abs() < 1e-3
        part[near] = key[near]


def cases() -> list[Case]:
    """Real and tiny sizes; hashes that wrap around; rows that are not there; rows of images, zeros and NaN."""
    tiny: dict[str, Any] = {"heads": 4, "vocabulary": 431, "table": 503}
    makers: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
        "engram_rows": (
            _rows,
            {
                "model": {"tokens": 37},
                "model-i64": {"tokens": 21, "wide": True},
                "tiny": {"tokens": 45, **tiny},
                "wrapping": {"tokens": 19, "wide": True, "wrapping": True},
                "bigrams": {"tokens": 9, "length": 2, "heads": 5},
                "rows-none": {"tokens": 0},
                "model-16384": {"tokens": 16384},
            },
        ),
        "engram_gather": (
            _gather,
            {
                "gather-model": {"tokens": 7},
                "gather-tiny": {"tokens": 11, "width": 32, "picks": 12},
                "gather-odd": {"tokens": 5, "width": 96, "picks": 3, "known": 9},
                "gather-none": {"tokens": 0},
                "gather-8192": {"tokens": 8192, "known": 4_000_000},
            },
        ),
        "engram_gate": (
            _gate,
            {
                "gate-model": {"tokens": 3},
                "gate-model-skip": {"tokens": 4, "skip": True},
                "gate-tiny": {"tokens": 9, "width": 128, "skip": True},
                "gate-odd": {"tokens": 5, "width": 1300},
                "gate-in-place": {"tokens": 4, "width": 2048, "skip": True, "in_place": True},
                "gate-zeros": {"tokens": 6, "width": 256, "kind": "zeros"},
                "gate-spoilt": {"tokens": 5, "width": 256, "kind": "spoilt"},
                "gate-none": {"tokens": 0},
                "gate-8192": {"tokens": 8192},
                "gate-8192-skip": {"tokens": 8192, "skip": True},
            },
        ),
    }
    found = []
    for factory, (make, given) in makers.items():
        for name, values in given.items():
            large = values["tokens"] > 1000
            engine = "model" in name and not large
            found.append(Case(factory, name, partial(make, **values), large=large, engine=engine))
    return found
