"""Cases of the rotary embedding of heads (model_spec 3.0, 3.3)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases.noise import noise

_TABLE_ROWS = 50


def _table(positions: torch.Tensor) -> list[Argument]:
    """Positions and their table, whose rows lie apart."""
    angles = torch.arange(_TABLE_ROWS, dtype=torch.float32)[:, None] * 10000 ** (-torch.arange(32) / 32)
    table = torch.full((_TABLE_ROWS, 80), 77.0)
    table[:, :64] = torch.cat((angles.cos(), angles.sin()), -1)
    return [Argument("positions", positions), Argument("cos_sin", table[:, :64])]


def _positions(generator: torch.Generator, n: int, wide: bool) -> torch.Tensor:
    """Some of them have no row in the table."""
    positions = torch.randint(0, _TABLE_ROWS, (n,), generator=generator)
    positions[1::4], positions[2::5] = -1, _TABLE_ROWS
    return positions if wide else positions.int()


def _rotate(
    generator: torch.Generator, *, n: int, h: int, d: int, inverse: bool, in_place: bool, wide: bool, apart: int
) -> Call:
    whole = noise(generator, (n, h * d + apart), torch.bfloat16) * 4
    x = whole[:, apart // 2 : apart // 2 + h * d].view(n, h, d)
    if n > 1 and h > 1:
        x[0, 0, -1], x[0, 1, -2], x[1, 0, 3], x[1, 1] = torch.nan, torch.inf, torch.nan, -0.0
    given = _table(_positions(generator, n, wide))
    out = x if in_place else torch.full((n, h, d + 8), 77.0, dtype=torch.bfloat16)[..., :d]
    return Call([Argument("x", x, output=in_place), *given, Argument("out", out, output=True)], (inverse,))


def _quantized(generator: torch.Generator, *, n: int, h: int, groups: int, spoilt: bool = False) -> Call:
    size = 10.0 ** torch.arange(-7, 6).repeat(n)[:n].view(-1, 1, 1)
    o = noise(generator, (n, h, 512)) * size
    if spoilt:
        o[0, 0, 500], o[0, 1, 3], o[1, 0], o[1, 1, 449], o[2] = torch.nan, torch.nan, torch.inf, -torch.inf, 0.0
    given = _table(_positions(generator, n, False))
    width = h // groups * 512
    values = torch.full((n, groups, width), 77, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.full((n, groups, width // 32), 77, dtype=torch.uint8)
    outputs = [Argument("values", values, output=True), Argument("scales", scales, output=True)]
    return Call([Argument("o", o), *given, *outputs])


def cases() -> list[Case]:
    """Widths from the rotated columns alone to the real model's heads, in place and apart; positions of no table row,
    NaN and infinities, partial tiles, one row and none.
    """
    found = []
    for name, n, h, d, apart in (
        ("one-row", 1, 1, 64, 0), ("partial", 29, 3, 128, 48), ("odd-width", 5, 2, 202, 6), ("no-rows", 0, 4, 128, 0),
    ):  # fmt: skip
        for inverse in (False, True):
            for in_place in (False, True):
                word = f"{'inverse' if inverse else 'forward'}-{'in-place' if in_place else 'apart'}"
                make = partial(
                    _rotate, n=n, h=h, d=d, inverse=inverse, in_place=in_place, wide=in_place, apart=apart
                )  # fmt: skip
                found.append(Case("rotate", f"{name}-{word}", make))
    for name, h, d, apart in (("query", 64, 512, 4096), ("index-query", 32, 128, 32768)):
        for n in (3, 4096):
            make = partial(_rotate, n=n, h=h, d=d, inverse=False, in_place=True, wide=False, apart=apart)
            found.append(Case("rotate", f"{name}-{n}", make, large=n > 3, engine=n == 3))
    for name, n, h, groups in (("one-head", 1, 1, 1), ("partial", 3, 5, 1), ("groups", 14, 4, 2), ("no-rows", 0, 4, 2)):
        found.append(Case("rotate_heads_quantize", name, partial(_quantized, n=n, h=h, groups=groups)))
    found.append(Case("rotate_heads_quantize", "nan", partial(_quantized, n=5, h=2, groups=2, spoilt=True)))
    for n in (3, 8192):
        make = partial(_quantized, n=n, h=64, groups=8)
        found.append(Case("rotate_heads_quantize", f"output-{n}", make, large=n > 3, engine=n == 3))
    return found
