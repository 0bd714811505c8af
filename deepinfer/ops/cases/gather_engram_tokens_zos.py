"""Cases of `gather_engram_tokens_zos_tl` (kernel_spec A.6)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.gather_input_ids_zos import batch, tokens

_COMPRESSED, _PAD, _SENTINEL = 99092, 7, -1


def _compressed(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Compressed ids with an image token here and there."""
    ids = tokens(generator, *shape, high=_COMPRESSED)
    ids[torch.rand(shape, generator=generator) < 0.1] = _SENTINEL
    return ids


def _make(generator: torch.Generator, *, r: int, rp: int, nextn: int, ngram: int, old: float, padding: int) -> Call:
    remap, seqlens_q, sums = batch(generator, r, rp, nextn + 1, old)
    table = tokens(generator, 1000, high=_COMPRESSED)
    arguments = [
        Argument("win_compressed", _compressed(generator, r, nextn + ngram - 1)),
        Argument("curr_fresh", _compressed(generator, r, nextn + 1)),
        # Some raw ids are beyond the table: the codes of image tokens.
        Argument("prev_sampled_token_ids", tokens(generator, rp, high=1060)),
        Argument("prev_predict_token_ids", tokens(generator, rp, nextn, high=1060) - 10),
        Argument("prev_num_accepted_tokens", tokens(generator, rp, high=nextn + 1)),
        Argument("remap", remap),
        Argument("lookup_table", table),
        Argument("seqlens_q", seqlens_q),
        Argument("cu_seqlens_q", sums),
        Argument(
            "out_ngram_token_ids",
            torch.full(((int(sums[-1]) if r else 0) + padding, ngram), -77, dtype=torch.int32),
            output=True,
        ),
    ]
    return Call(arguments, (nextn + 1, ngram, _PAD, _SENTINEL))


def cases() -> list[Case]:
    """Drafts and n-gram sizes of the spec, fresh and old sequences; padding rows; 33 drafts; batches of none."""
    found = []
    for name, r, rp, nextn, ngram, old, padding, engine in (
        ("mixed", 60, 50, 5, 4, 0.5, 0, True),
        ("old", 64, 64, 5, 3, 1.0, 0, False),
        ("fresh", 30, 0, 5, 4, 0.0, 0, False),
        ("no-drafts-3", 150, 90, 0, 3, 0.5, 0, False),
        ("no-drafts-4", 150, 90, 0, 4, 1.0, 0, False),
        ("one-draft-3", 70, 90, 1, 3, 0.5, 0, False),
        ("one-draft-4", 70, 90, 1, 4, 0.5, 0, False),
        ("33-drafts", 5, 4, 33, 4, 0.6, 0, False),
        ("padded", 5, 5, 5, 4, 0.5, 3, False),
        ("single", 9, 9, 2, 1, 0.5, 0, False),
        ("beyond", 7, 0, 5, 4, 1.0, 0, False),
        ("cut", 10, 10, 5, 4, 0.5, -9, False),
        ("none", 0, 3, 5, 4, 0.5, 8, False),
        ("decode", 256, 256, 5, 4, 0.9, 0, True),
    ):
        make = partial(_make, r=r, rp=rp, nextn=nextn, ngram=ngram, old=old, padding=padding)
        found.append(Case("gather_engram_tokens_zos_tl", name, make, engine=engine))
    return found
