"""Cases of `detect_outlier_and_abort_tl` (kernel_spec A.19): data that passes, and stays as it is."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(generator: torch.Generator, *, numel: int, dtype: torch.dtype, identity: int, largest: float) -> Call:
    data = torch.randn(numel, generator=generator).to(dtype)
    data[::2] = largest
    return Call([Argument("data", data), Argument("id", identity)], (dtype, 1e11))


def cases() -> list[Case]:
    """Every type, sizes around a tile, values just below the limit, ids of 64 bits. There is no output."""
    found = []
    for dtype, largest in ((torch.float16, -65504.0), (torch.bfloat16, 9.9e10), (torch.float32, -9.9999e10)):
        name = str(dtype).removeprefix("torch.")
        for numel in (1, 1023, 5000):
            make = partial(_make, numel=numel, dtype=dtype, identity=2**62 + numel, largest=largest)
            found.append(Case("detect_outlier_and_abort_tl", f"{name}-{numel}", make, engine=numel == 5000))
        make = partial(_make, numel=100_000_003, dtype=dtype, identity=-1, largest=largest)
        found.append(Case("detect_outlier_and_abort_tl", f"{name}-large", make, large=True))
    return found
