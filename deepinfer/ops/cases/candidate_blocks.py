"""Cases of the candidate-block kernels (kernel_spec A.11)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.tolerance import difference


def cases() -> list[Case]:
    """Block maxima of short and of a million logits, compact lengths, indices in and out of range."""
    return [*_max_cases(), *_lens_cases(), *_restore_cases()]


def _judge(expected: Results, got: Results) -> str:
    """Scores of the valid blocks; those behind them are unspecified, and so is the sign of a zero."""
    valid, scores = expected["valid_blocks"], expected["block_scores"]
    own = torch.arange(scores.shape[1]) < valid[: scores.shape[0], None]
    return difference("scores of valid blocks", scores[own] + 0.0, got["block_scores"][own] + 0.0)


def _max(
    generator: torch.Generator, *, n: int, length: int, stride: int, block_size: int, blocks: int, lens: list[int]
) -> Call:
    logits = noise(generator, (n, stride), torch.bfloat16)[:, :length]
    if n > 1:
        logits[0, :40] = -torch.inf
        logits[1, 0], logits[1, 3], logits[1, block_size + 1] = torch.inf, torch.nan, torch.nan
        logits[1, 2 * block_size : 3 * block_size] = torch.nan
        logits[-1, :block_size] = torch.tensor([-0.0, 0.0]).repeat(block_size // 2)
    valid = torch.randint(0, length + 1, (n,), dtype=torch.int32, generator=generator)
    valid[: len(lens)] = torch.tensor(lens, dtype=torch.int32)[:n]
    scores = torch.full((n, -(-blocks // 512) * 512), -77.0, dtype=torch.bfloat16)[:, :blocks]
    arguments = [
        Argument("logits", logits),
        Argument("valid_lens", valid),
        Argument("block_scores", scores, output=True, tolerance=None),
        Argument("valid_blocks", torch.full((-(-n // 4) * 4,), 0x5A5A5A5A, dtype=torch.int32), output=True),
    ]
    return Call(arguments, (length, block_size), judge=_judge)


def _max_cases() -> list[Case]:
    found = []
    for name, n, length, stride, size, blocks, lens, engine in (
        ("no-rows", 0, 64, 64, 8, 8, [], False),
        ("one-row", 1, 1029, 2048, 8, 129, [1029], False),
        ("edges-8", 9, 300, 304, 8, 38, [0, 300, 1, 8, 9, 299, -3, 4000], False),
        ("edges-16", 6, 300, 304, 16, 19, [300, 200, 16, 17, 0], False),
        ("fewer-blocks", 5, 300, 304, 8, 20, [300, 160, 161, 159, 8], False),
        ("two-tiles", 3, 8300, 8304, 8, 1038, [8300, 8299, 4100], False),
        ("model-8", 3, 16384, 16384, 8, 2048, [16384, 9000, 5], True),
        ("model-8-odd-length", 3, 16390, 16400, 8, 2049, [16390, 9000, 5], True),
        *(
            (f"{n}-half-million-{size}", n, 2**19 + 5, 2**20, size, -(-(2**19 + 5) // size), [2**19 + 5], False)
            for n in (1, 67, 384)
            for size in (8, 16)
        ),
    ):
        make = partial(_max, n=n, length=length, stride=stride, block_size=size, blocks=blocks, lens=lens)
        found.append(Case("candidate_block_max_tl", f"max-{name}", make, large=length > 20_000, engine=engine))
    return found


def _blocks(generator: torch.Generator, n: int, width: int) -> torch.Tensor:
    """Rows of ascending block numbers with -1 behind them, as a part of wider rows."""
    table = torch.full((n, -(-width // 8) * 8 + 8), 0x5A5A5A5A, dtype=torch.int32)[:, :width]
    chosen = torch.randint(1, 8, (n, width), generator=generator).cumsum(1) - 1
    count = torch.randint(0, width + 1, (n, 1), generator=generator)
    return table.copy_(torch.where(torch.arange(width) < count, chosen, -1))


def _lens(generator: torch.Generator, *, n: int, width: int, block_size: int) -> Call:
    blocks = _blocks(generator, n, width)
    valid = torch.randint(0, 4 * width * block_size, (n,), dtype=torch.int32, generator=generator)
    if n > 3:
        blocks[0, :2] = torch.tensor([2**31 - 1, 2**28 + 1])
        valid[1], valid[2], valid[3] = 0, -5, 2**31 - 1
    out = torch.full((n + 2,), 0x5A5A5A5A, dtype=torch.int32)[1 : n + 1]
    arguments = [Argument("candidate_blocks", blocks), Argument("valid_lens", valid)]
    return Call([*arguments, Argument("compact_lens", out, output=True)], (width, block_size))


def _lens_cases() -> list[Case]:
    found = []
    for n, width, size in (
        (0, 8, 8),
        (7, 8, 8),
        (5, 2048, 8),
        (6, 1030, 16),
        (1, 8, 16),
        (67, 1024, 8),
        (1536, 2048, 8),
    ):
        make = partial(_lens, n=n, width=width, block_size=size)
        large, engine = n > 60, width == 2048 and n < 60
        found.append(
            Case("get_candidate_compact_lens_tl", f"lens-{n}x{width}-{size}", make, large=large, engine=engine)
        )
    return found


def _restore(generator: torch.Generator, *, n: int, tokens: int, width: int, block_size: int, offset: bool) -> Call:
    compact = torch.full((n + 2, -(-tokens // 8) * 8 + 8), 0x5A5A5A5A, dtype=torch.int32)[1 : n + 1, :tokens]
    compact.copy_(torch.randint(-3, width * block_size, (n, tokens), dtype=torch.int32, generator=generator))
    if n > 1:
        compact[1, :4] = torch.tensor([width * block_size, 2**31 - 1, -(2**31), width * block_size - 1])
    shifts = torch.randint(0, 1_000_000, (n,), dtype=torch.int32, generator=generator) if offset else None
    arguments = [
        Argument("compact_indices", compact, output=True),
        Argument("candidate_blocks", _blocks(generator, n, width)),
        Argument("output_idx_offset", shifts),
    ]
    return Call(arguments, (tokens, width, block_size, offset))


def _restore_cases() -> list[Case]:
    found = []
    for n, tokens, width, size, engine in (
        (0, 16, 8, 8, False),
        (5, 37, 9, 8, False),
        (3, 1027, 129, 16, False),
        (4, 512, 2048, 8, True),
        (67, 1027, 129, 8, False),
        (2048, 512, 2048, 8, True),
    ):
        for offset in (False, True):
            name = f"restore-{n}x{tokens}-{width}x{size}{'-offset' if offset else ''}"
            make = partial(_restore, n=n, tokens=tokens, width=width, block_size=size, offset=offset)
            found.append(Case("restore_candidate_indices_inplace_tl", name, make, large=n > 60, engine=engine))
    return found
