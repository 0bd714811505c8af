"""Cases of `copy_dflash_decode_input_tl` (kernel_spec A.8)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.sampler import SEEDS
from deepinfer.ops.dflash_copy import NAMES


def _vector(generator: torch.Generator, name: str, size: int) -> torch.Tensor:
    if name == "seq_seeds":
        cycle = torch.tensor(SEEDS, dtype=torch.uint64).view(torch.int64)
        return cycle.repeat(size)[:size].view(torch.uint64)
    if name in ("temperatures", "top_ps"):
        values = torch.rand(size, generator=generator)
        values[::5] = torch.nan
        return values
    return torch.randint(-1, 1000000, (size,), dtype=torch.int32, generator=generator)


def _make(generator: torch.Generator, *, rs: int, rp: int, rd: int, driver: bool) -> Call:
    arguments = []
    for group, size in (("src", rs), ("padding", rp), ("dst", rd)):
        for name in NAMES:
            wanted = driver or name == NAMES[0]
            value = _vector(generator, name, size) if wanted else None
            arguments.append(Argument(f"{group}_{name}", value, output=group == "dst"))
    return Call(arguments, (driver,))


def cases() -> list[Case]:
    """With and without the inputs of the rank that samples, with and without padding; too little padding; none live."""
    found = []
    for name, rs, rp, rd in (
        ("full", 257, 512, 257),
        ("padded", 257, 512, 512),
        ("graph", 5, 8, 8),
        ("little-padding", 5, 2, 9),
        ("no-padding", 5, 0, 9),
        ("none-live", 0, 8, 8),
        ("none", 0, 8, 0),
    ):
        for driver in (False, True):
            make = partial(_make, rs=rs, rp=rp, rd=rd, driver=driver)
            suffix = "-driver" if driver else ""
            found.append(Case("copy_dflash_decode_input_tl", f"{name}{suffix}", make, engine=name == "padded"))
    return found
