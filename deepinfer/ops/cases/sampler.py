"""Cases of `sampler` (kernel_spec A.3)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases import remap_draft_topk, verification
from deepinfer.ops.cases.verification import batch, chance, tokens

SEEDS = (0, 1, 12345, 2**63 - 1, 2**63, 2**64 - 1)


def _metadata(generator: torch.Generator, *, r: int, max_steps: int, padding: int) -> Call:
    rows = batch(generator, r, max_steps, padding)
    arguments = [
        Argument("ftp", rows.ftp),
        Argument("seqlen_q", rows.seqlen_q),
        Argument("row_to_req", torch.full((rows.q,), 77, dtype=torch.int32), output=True),
        Argument("local_step", torch.full((rows.q,), 77, dtype=torch.int32), output=True),
        Argument("is_verify", chance(generator, 0.5, rows.q), output=True),
    ]
    return Call(arguments, (max_steps,))


def _expand(generator: torch.Generator, *, r: int, max_steps: int, padding: int) -> Call:
    rows = batch(generator, r, max_steps, padding)
    count = rows.ftp.shape[0]
    seeds = torch.tensor(SEEDS, dtype=torch.uint64).view(torch.int64).repeat(count)[:count].view(torch.uint64)
    given = {
        "temperatures": torch.rand(count, generator=generator),
        "top_ps": torch.rand(count, generator=generator),
        "top_ks": tokens(generator, count) - 1,
        "sample_positions": tokens(generator, count, high=1048576),
        "seq_seeds": seeds,
    }
    arguments = [Argument(name, value) for name, value in given.items()]
    arguments += [Argument("row_to_req", rows.row_to_req), Argument("local_step", rows.local_step)]
    for name, value in given.items():
        junk = torch.full((rows.q * value.element_size(),), 77, dtype=torch.uint8).view(value.dtype)
        arguments.append(Argument(f"{name}_out", junk, output=True))
    return Call(arguments)


def _look_up(generator: torch.Generator, *, mode: str, dtype: torch.dtype, q: int, width: int) -> Call:
    keys = torch.stack([torch.randperm(2 * width, generator=generator)[:width].int() for _ in range(q)])
    value = (
        torch.randn(q, width + 3, generator=generator) if dtype.is_floating_point else tokens(generator, q, width + 3)
    )[:, :width]
    query = torch.randint(-2, width + 3, (q, 2), dtype=torch.int32, generator=generator)[:, :1]
    if mode == "by_key":
        rows = torch.arange(0, q, 2)
        query[rows, 0] = keys[rows, tokens(generator, rows.shape[0], high=width).long()]
    arguments = [
        Argument("key", keys if mode == "by_key" else None),
        Argument("value", value),
        Argument("query", query),
        Argument("out", torch.full((q, 1), 77, dtype=dtype), output=True),
    ]
    return Call(arguments, (width, mode, dtype))


def cases() -> list[Case]:
    """1 to 33 drafts; padding rows after the live ones; the largest seeds; queries out of range; no rows at all."""
    found = []
    for name, r, max_steps, padding, engine in (
        ("1", 256, 1, 0, False),
        ("3", 150, 3, 0, False),
        ("6", 256, 6, 0, True),
        ("34", 20, 34, 0, False),
        ("padded", 2, 3, 3, False),
        ("none", 0, 3, 0, False),
        ("all-padding", 0, 3, 8, False),
    ):
        make = partial(_metadata, r=r, max_steps=max_steps, padding=padding)
        found.append(Case("prepare_verification_metadata_tl", f"metadata-{name}", make, engine=engine))
        make = partial(_expand, r=r, max_steps=max_steps, padding=padding)
        found.append(Case("expand_sampling_params_tl", f"expand-{name}", make, engine=engine))
    for name, mode, dtype, q, width, engine in (
        ("by-key", "by_key", torch.float32, 9, 100, False),
        ("by-key-1024", "by_key", torch.float32, 5, 1024, True),
        ("by-key-wide", "by_key", torch.float32, 3, 4096, False),
        ("by-key-one", "by_key", torch.float32, 5, 1, False),
        ("by-index", "by_index", torch.float32, 300, 40, False),
        ("by-index-1024", "by_index", torch.float32, 40, 1024, True),
        ("by-index-i32", "by_index", torch.int32, 300, 40, False),
        ("by-index-i32-1024", "by_index", torch.int32, 40, 1024, True),
        ("by-index-vocabulary", "by_index", torch.float32, 2, 129280, True),
    ):
        make = partial(_look_up, mode=mode, dtype=dtype, q=q, width=width)
        found.append(Case("map_lookup_tl", name, make, engine=engine))
    for name, mode, q in (("large-by-key", "by_key", 1536), ("large-by-index", "by_index", 1536)):
        make = partial(_look_up, mode=mode, dtype=torch.float32, q=q, width=4096)
        found.append(Case("map_lookup_tl", name, make, large=True))
    return found + remap_draft_topk.cases() + verification.cases()
