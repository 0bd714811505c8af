"""Cases of `gather_input_ids_zos_tl` (kernel_spec A.6)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def tokens(generator: torch.Generator, *shape: int, high: int = 129280) -> torch.Tensor:
    """int32 token ids."""
    return torch.randint(0, high, shape, dtype=torch.int32, generator=generator)


def batch(
    generator: torch.Generator, r: int, rp: int, max_seqlen_q: int, old: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """remap, seqlens_q, cu_seqlens_q of a batch of which a share `old` was in the batch before."""
    remap = tokens(generator, r, high=max(rp, 1))
    remap[torch.rand(r, generator=generator) >= old] = -1
    seqlens_q = tokens(generator, r, high=max_seqlen_q) + 1
    return remap, seqlens_q, torch.cumsum(seqlens_q, 0, dtype=torch.int32)


def _make(generator: torch.Generator, *, r: int, rp: int, nextn: int, old: float, padding: int) -> Call:
    remap, seqlens_q, sums = batch(generator, r, rp, nextn + 1, old)
    total = (int(sums[-1]) if r else 0) + padding
    arguments = [
        Argument("fresh_tokens", tokens(generator, r, nextn + 1)),
        Argument("prev_sampled_token_ids", tokens(generator, rp)),
        Argument("prev_predict_token_ids", tokens(generator, rp, nextn)),
        Argument("remap", remap),
        Argument("seqlens_q", seqlens_q),
        Argument("cu_seqlens_q", sums),
        Argument("out_input_ids", torch.full((total,), -77, dtype=torch.int32), output=True),
    ]
    return Call(arguments, (nextn + 1,))


def cases() -> list[Case]:
    """Fresh and old sequences; no drafts; 33 drafts; rows after the live ones; no sequence; a buffer too small."""
    found = []
    for name, r, rp, nextn, old, padding, engine in (
        ("mixed", 100, 80, 5, 0.5, 0, True),
        ("old-7", 128, 128, 7, 1.0, 0, False),
        ("fresh-7", 40, 0, 7, 0.0, 0, False),
        ("no-drafts", 128, 90, 0, 0.5, 0, False),
        ("one-draft", 128, 90, 1, 0.5, 0, False),
        ("33-drafts", 9, 7, 33, 0.6, 0, False),
        ("padded", 5, 5, 5, 0.5, 3, False),
        ("beyond", 7, 0, 5, 1.0, 0, False),
        ("cut", 20, 20, 5, 0.5, -9, False),
        ("none", 0, 3, 5, 0.5, 8, False),
        ("decode", 256, 256, 5, 0.9, 0, True),
    ):
        make = partial(_make, r=r, rp=rp, nextn=nextn, old=old, padding=padding)
        found.append(Case("gather_input_ids_zos_tl", name, make, engine=engine))
    return found
