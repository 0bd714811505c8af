"""Cases of `gather_tl` (kernel_spec A.10)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(
    generator: torch.Generator, *, n: int, m: int, width: int, wide_index: bool, stride: int, outside: bool
) -> Call:
    x = torch.randint(-128, 128, (n, stride), dtype=torch.int8, generator=generator)[:, :width]
    index = torch.randint(0, n, (m,), generator=generator)
    if outside and m:
        index[::3], index[1::5] = -1, n
    index = index if wide_index else index.int()
    y = torch.full((m, width), 77, dtype=torch.int8)
    arguments = [Argument("x", x), Argument("index", index), Argument("y", y, output=True)]
    return Call(arguments, (width, torch.int8, index.dtype, x.stride(0)))


def cases() -> list[Case]:
    """Widths from odd to a real embedding's row; both index types; indices that are negative or too large."""
    found = []
    for name, n, m, width, stride, large in (
        ("odd", 5, 7, 33, 33, False),
        ("strided", 9, 3, 64, 96, False),
        ("two-blocks", 4, 2, 40000, 40000, False),
        ("zero-rows", 4, 0, 64, 64, False),
        ("embedding", 4096, 8192, 8192, 8192, True),
    ):
        for wide_index in (False, True):
            for outside in (False, True):
                suffix = f"{'i64' if wide_index else 'i32'}{'-outside' if outside else ''}"
                make = partial(_make, n=n, m=m, width=width, stride=stride, wide_index=wide_index, outside=outside)
                found.append(Case("gather_tl", f"{name}-{suffix}", make, large=large, engine=name == "embedding"))
    return found
