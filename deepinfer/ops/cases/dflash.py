"""Cases of `confidence_head_fused_tl` and `dflash_input_store_tl` (kernel_spec A.8)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.tolerance import Tolerance


def cases() -> list[Case]:
    """Confidences with and without the Markov part, at both clamps; features into columns of a wider buffer."""
    return [*_confidence_cases(), *_store_cases()]


def _confidence(
    generator: torch.Generator, *, n: int, n_embed: int, rank: int, stride: int, temp: float, scale: float
) -> Call:
    hidden = (noise(generator, (n, -(-n_embed // 8) * 8 + 8), torch.bfloat16) * scale)[:, :n_embed]
    markov = torch.randn((n, rank), generator=generator).bfloat16() if rank else None
    weight = (torch.randn(n_embed + rank, generator=generator) / (n_embed + rank) ** 0.5).bfloat16()
    if n > 2:
        hidden[1, n_embed - 1] = torch.nan
    arguments = [
        Argument("x0", hidden),
        Argument("x1", markov),
        Argument("weight", weight),
        Argument("out", torch.full((n * stride,), -77.0)[::stride], output=True, tolerance=Tolerance(1e-4)),
        Argument("temp", temp),
    ]
    return Call(arguments, (n_embed, rank, rank > 0))


def _confidence_cases() -> list[Case]:
    found = []
    for n, n_embed, rank, stride, temp, scale, engine in (
        (0, 512, 0, 1, 1.0, 1.0, False),
        (1, 5120, 256, 5, 1.0, 1.0, True),
        (7, 5120, 256, 5, 0.7, 1.0, True),
        (3, 512, 128, 7, 1.3, 1.0, False),
        (5, 37, 11, 1, 1.0, 1.0, False),
        (9, 1032, 0, 1, 0.01, 9.0, False),
        (4097, 512, 0, 7, 1.0, 1.0, False),
        (4097, 4096, 128, 1, 1.0, 1.0, False),
        (4097, 7168, 512, 7, 2.0, 1.0, False),
        (256, 5120, 256, 5, 1.0, 1.0, False),
    ):
        make = partial(_confidence, n=n, n_embed=n_embed, rank=rank, stride=stride, temp=temp, scale=scale)
        name = f"confidence-{n}x{n_embed}+{rank}-stride-{stride}-temp-{temp}"
        found.append(Case("confidence_head_fused_tl", name, make, large=n > 100, engine=engine))
    return found


def _store(generator: torch.Generator, *, n: int, n_embed: int, streams: int, begin: int, wide: int) -> Call:
    x = noise(generator, (n, streams, n_embed), torch.bfloat16)
    buffer = torch.full((n + 2, wide), -77.0, dtype=torch.bfloat16)[1 : n + 1, begin : begin + n_embed]
    return Call([Argument("x", x), Argument("out", buffer, output=True)], (n_embed, streams))


def _store_cases() -> list[Case]:
    found = []
    for n, n_embed, streams, begin, wide, engine in (
        (0, 512, 4, 0, 512, False),
        (3, 5120, 4, 5120, 15360, True),
        (7, 512, 4, 4, 520, False),
        (7, 512, 1, 0, 512, False),
        (3, 1100, 3, 4, 1108, False),
        (5, 33, 2, 1, 36, False),
        (233, 7168, 4, 0, 7168, False),
        (4097, 4096, 1, 0, 4096, False),
        (8198, 7168, 4, 7168, 21504, False),
        (16384, 5120, 4, 10240, 15360, False),
    ):
        make = partial(_store, n=n, n_embed=n_embed, streams=streams, begin=begin, wide=wide)
        name = f"store-{n}x{streams}x{n_embed}-at-{begin}-of-{wide}"
        found.append(Case("dflash_input_store_tl", name, make, large=n > 100, engine=engine))
    return found
