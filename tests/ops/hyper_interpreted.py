"""`hyper_step` of many rows and of few, whose sums are made by different programs, bit by bit: `python -m
tests.ops.hyper_interpreted` (TRITON_INTERPRET=1) prints what differs.

The interpreter's products are NumPy's, whose order depends on the tile: here every block of columns has one weight that
is not zero, so that a block's sum has no order, and only that of the blocks is compared.
"""

from __future__ import annotations

import json

import torch

from deepinfer.ops import using
from deepinfer.ops.hyper import hyper_step
from deepinfer.ops.tolerance import as_bits

MANY, WIDTH, BLOCK = 258, 544, 32
PARTS = (slice(0, 1), slice(3, 40), slice(256, 258))


def _weights(generator: torch.Generator) -> torch.Tensor:
    blocks = WIDTH // BLOCK
    column = torch.arange(blocks) * BLOCK + torch.randint(BLOCK, (24, blocks), generator=generator)
    stream = torch.randint(4, (24, blocks), generator=generator)
    values = torch.randn((24, blocks), generator=generator)
    return torch.zeros(24, 4 * WIDTH).scatter_(1, stream * WIDTH + column, values)


def differences() -> list[str]:
    """Where rows of a small batch have other bits than in the large one; what of the large one says nothing."""
    generator = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    trunk, x = drawn(MANY, 4, WIDTH).bfloat16(), drawn(MANY, WIDTH).bfloat16()
    trunk[256, 2, 7] = torch.nan
    rows = (trunk, x, drawn(MANY, 4).abs(), torch.softmax(drawn(MANY, 4, 4), -1), drawn(MANY, 4).abs())
    fixed = (_weights(generator), drawn(24), drawn(3).abs(), (1 + drawn(WIDTH) / 10).bfloat16())
    with using("triton"):
        many = hyper_step(*rows, *fixed, 1e-20, 1e-6, 1)
        found = [f"{name}: all alike" for name, one in many._asdict().items() if len(as_bits(one).unique()) < 2]
        for part in PARTS:
            few = hyper_step(*(one[part] for one in rows), *fixed, 1e-20, 1e-6, 1)
            for name, whole, alone in zip(many._fields, many, few, strict=True):
                wrong = int((as_bits(whole)[part] != as_bits(alone)).sum())
                found += [f"{name}, rows {part.start} to {part.stop - 1}: {wrong} values differ"] if wrong else []
    return found


if __name__ == "__main__":
    print(json.dumps(differences()))
