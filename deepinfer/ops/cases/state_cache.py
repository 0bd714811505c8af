"""Cases of `select_state_slice_tl` and `load_state_to_cache_tl` (kernel_spec A.16)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _ring(generator: torch.Generator, layers: int, rows: int, width: int, unit: int) -> torch.Tensor:
    """[layers, rows, width] bytes; layers are padded to a multiple of `unit` and at least 8 bytes, rows to one of 8."""
    row = -(-width // 8) * 8
    stride = -(-rows * row // unit) * unit + 8
    data = torch.randint(0, 256, (layers * stride,), dtype=torch.uint8, generator=generator)
    return data.as_strided((layers, rows, width), (stride, row, 1))


def _make(
    generator: torch.Generator, *, layers: int, width: int, kvstore: int, inference: int, unit: int, p: int, load: bool
) -> Call:
    tensor = _ring(generator, layers, inference, width, unit)
    cache = _ring(generator, layers, kvstore, width, unit)
    arguments = [
        Argument("state_tensor", tensor, output=not load),
        Argument("state_cache", cache, output=load),
        Argument("last_hit_position", p),
    ]
    return Call(arguments, (kvstore, inference, layers, width))


def cases() -> list[Case]:
    """The spec's shapes, rings of 528-byte rows as the real model has, odd widths, positions before the ring's end."""
    found = []
    for name, layers, width, kvstore, inference, unit, p, engine in (
        ("negative", 3, 24, 9, 5, 8, 2, False),
        ("zero", 2, 24, 9, 5, 8, 0, False),
        ("below-zero", 2, 24, 7, 5, 8, -11, False),
        ("wrapped", 2, 16, 9, 9, 8, 500, False),
        ("far", 2, 16, 10, 3, 8, 2**31 - 1, False),
        ("odd-width", 3, 9, 7, 5, 8, 3, False),
        ("two-columns", 2, 9000, 4, 3, 8, 6, False),
        ("model", 3, 528, 134, 134, 32, 1000, True),
        ("model-extra", 2, 528, 262, 134, 32, 128, True),
        ("584-258-130", 40, 584, 258, 130, 32, 500, False),
        ("584-130-130", 40, 584, 130, 130, 32, 500, False),
        ("4096-136-8", 40, 4096, 136, 8, 8, 500, False),
        ("4096-8-8", 40, 4096, 8, 8, 8, 500, False),
    ):
        for load in (False, True):
            make = partial(
                _make, layers=layers, width=width, kvstore=kvstore, inference=inference, unit=unit, p=p, load=load
            )
            factory = "load_state_to_cache_tl" if load else "select_state_slice_tl"
            full = f"{'load' if load else 'select'}-{name}"
            found.append(Case(factory, full, make, large=layers == 40, engine=engine))
    return found
