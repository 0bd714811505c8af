"""Cases of `expand_swa_index_tl` (kernel_spec A.9)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(generator: torch.Generator, *, n: int, width: int, padding: int) -> Call:
    begin = torch.randint(0, 2_000_000_000, (n, 2), dtype=torch.int32, generator=generator)
    length = torch.randint(0, width, (n, 2), dtype=torch.int32, generator=generator)
    pivots = torch.stack((begin[:, 0], length[:, 0], begin[:, 1], length[:, 1]), 1).contiguous()
    if n > 3:
        pivots[1] = torch.tensor([5, 0, 7, 2**31 - 1])
        pivots[2] = torch.tensor([2**31 - 3, width // 2, 2**31 - 2, width])
        pivots[3] = torch.tensor([0, -4, 9, -1])
    buffer = torch.full((n + 2, width + padding), 0x5A5A5A5A, dtype=torch.int32)
    return Call([Argument("pivots", pivots), Argument("output", buffer[1 : n + 1, :width], output=True)], (width,))


def cases() -> list[Case]:
    """The spec's shapes with bytes around the output that must stay; lengths that are 0, negative and far too long."""
    found = []
    for n, width, padding in (
        (0, 128, 0),
        (1, 128, 0),
        (31, 128, 16),
        (33, 128, 0),
        (129, 127, 0),
        (65, 1025, 0),
        (9, 130, 3),
        (257, 4096, 0),
        (65536, 128, 0),
        (262144, 128, 0),
    ):
        large = n * width > 1_000_000
        make = partial(_make, n=n, width=width, padding=padding)
        name = f"{n}x{width}{f'-padded-{padding}' if padding else ''}"
        found.append(Case("expand_swa_index_tl", name, make, large=large, engine=width == 128 and padding == 0))
    return found
