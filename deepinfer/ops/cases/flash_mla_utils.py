"""Cases of `convert_kv_index_tl` (kernel_spec A.9)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(generator: torch.Generator, *, b: int, s: int, k: int, n: int, block_size: int, table_width: int) -> Call:
    buffer = torch.full((b + 2, s, k), 0x5A5A5A5A, dtype=torch.int32)
    topk_idxs = buffer[1 : b + 1]
    topk_idxs.copy_(torch.randint(0, n * block_size, (b, s, k), dtype=torch.int32, generator=generator))
    context_lens = torch.randint(0, k + 1, (b, s), dtype=torch.int32, generator=generator)
    if b > 3:
        context_lens[0], context_lens[1], context_lens[2] = 0, k, k + 1000
        context_lens[3] = -1
        topk_idxs[1, 0, :4] = torch.tensor([-1, n * block_size, 2**31 - 1, -(2**31)])
    tables = torch.full((b, table_width), 0x5A5A5A5A, dtype=torch.int32)[:, :n]
    tables.copy_(torch.randint(0, 100_000, (b, n), dtype=torch.int32, generator=generator))
    arguments = [
        Argument("topk_idxs", topk_idxs, output=True),
        Argument("context_lens", context_lens),
        Argument("block_tables", tables),
    ]
    return Call(arguments, (s, k, n, block_size))


def cases() -> list[Case]:
    """Lengths of 0, of all, too long and negative; indices outside of the table; tables that are a wider one's part."""
    found = []
    for name, b, s, k, n, block_size, table_width in (
        ("no-rows", 0, 1, 512, 16, 16, 16),
        ("small", 17, 1, 64, 24, 16, 24),
        ("drafts", 5, 4, 100, 9, 3, 17),
        ("wide", 4, 1, 1029, 4096, 16, 4096),
        ("model-64", 4, 6, 512, 2048, 64, 2048),
        ("model-128", 4, 6, 512, 2048, 128, 2048),
        ("model-64-many-rows", 2048, 1, 512, 64, 64, 64),
        ("model-128-many-rows", 2048, 1, 512, 64, 128, 64),
        *((f"{b}x{s}x{k}", b, s, k, 4096, 16, 4096) for b in (17, 256) for s in (1, 4) for k in (512, 1024)),
        ("decode-256", 256, 6, 512, 8192, 128, 8192),
    ):
        make = partial(_make, b=b, s=s, k=k, n=n, block_size=block_size, table_width=table_width)
        large = b * s * k > 20_000
        found.append(Case("convert_kv_index_tl", name, make, large=large, engine=name.startswith("model")))
    return found
