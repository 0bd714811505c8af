"""Cases of the casts with a scale per 128 columns, and of the experts' padded rows."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.cases import quantized
from deepinfer.ops.cases.experts import choices_of, sorted_choices
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.per128 import column_scales, most_expert_rows
from deepinfer.ops.tolerance import EXACT, Tolerance, as_bits

_ONE_STEP = Tolerance(absolute=2.0**-9, relative=2.0**-3)
"""The next value of e4m3: the exponential function may move what lies on the boundary of two."""
_SHARE = 2e-3
_TABLE_ROWS = 50


def _few_differ(expected: Results, got: Results) -> str:
    differ = (as_bits(expected["values"]) != as_bits(got["values"])).float()
    share = float(differ.mean()) if differ.numel() else 0.0
    return "" if share <= _SHARE else f"values: {share:.2%} differ by a step, {_SHARE:.2%} at most"


def _outputs(rows: int, columns: int, tolerance: Tolerance = EXACT, prefix: str = "") -> list[Argument]:
    values = torch.full((rows, columns), 77, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = column_scales(rows, columns // 128, "cpu")
    if scales.untyped_storage().nbytes():
        scales.as_strided((scales.untyped_storage().nbytes() // 4,), (1,)).fill_(77.0)
    names = [f"{prefix}values", f"{prefix}scales"]
    return [Argument(names[0], values, True, tolerance), Argument(names[1], scales, True)]


def _choices(generator: torch.Generator, rows: int, n: int, topk: int) -> torch.Tensor:
    """Choices of n rows at some of `rows` places; others have none, or what is none."""
    found = torch.randint(0, n * topk, (rows,), generator=generator, dtype=torch.int32)
    found[1::5], found[2::7], found[3::11] = -1, n * topk, -9
    return found


def _quantize(
    generator: torch.Generator, *, n: int, k: int, dtype: torch.dtype, rows: int | None = None, topk: int = 3,
    stride: int = 0, spoilt: bool = False,
) -> Call:  # fmt: skip
    size = 10.0 ** torch.arange(-7, 6).repeat(n)[:n].view(-1, 1)
    x = (noise(generator, (n, stride or k)) * size).to(dtype)
    if spoilt:
        x[0, 3], x[1, 40], x[2], x[3] = torch.nan, torch.inf, torch.nan, 0.0
        x[4, :128], x[5, 7], x[6] = 1e-39, -torch.inf, -0.0
    choices = None if rows is None else _choices(generator, rows, n, topk)
    given = [Argument("x", x[:, :k]), Argument("choices", choices), Argument("topk", 1 if rows is None else topk)]
    return Call([*given, *_outputs(n if rows is None else rows, k)], (rows is not None,))


def _swiglu(generator: torch.Generator, *, m: int, f: int, weighted: bool, spoilt: bool = False) -> Call:
    gate_up = noise(generator, (m, 2 * f), torch.bfloat16) * 4
    weights = torch.rand(40, generator=generator) * 1.5 if weighted else None
    choices = _choices(generator, m, 40, 1) if weighted else None
    if spoilt:
        gate_up[0, 3], gate_up[1, f + 5], gate_up[2, :] = torch.nan, torch.inf, -torch.inf
        gate_up[3, 0:8], gate_up[3, f : f + 8], gate_up[4] = 30.0, -40.0, 0.0
    arguments = [
        Argument("gate_up", gate_up), Argument("limit", 10.0), Argument("weights", weights),
        Argument("choices", choices), *_outputs(m, f, _ONE_STEP),
    ]  # fmt: skip
    return Call(arguments, (weighted,), judge=_few_differ)


def _rotate(generator: torch.Generator, *, n: int, h: int, spoilt: bool = False) -> Call:
    size = 10.0 ** torch.arange(-7, 6).repeat(n)[:n].view(-1, 1, 1)
    o = noise(generator, (n, h, 512)) * size
    if spoilt:
        o[0, 0, 500], o[0, 1, 3], o[1, 0], o[1, 1, 449], o[2] = torch.nan, torch.nan, torch.inf, -torch.inf, 0.0
    positions = torch.randint(0, _TABLE_ROWS, (n,), generator=generator).int()
    positions[1::4], positions[2::5] = -1, _TABLE_ROWS
    angles = torch.arange(_TABLE_ROWS, dtype=torch.float32)[:, None] * 10000 ** (-torch.arange(32) / 32)
    table = torch.full((_TABLE_ROWS, 80), 77.0)
    table[:, :64] = torch.cat((angles.cos(), angles.sin()), -1)
    given = [Argument("o", o), Argument("positions", positions), Argument("cos_sin", table[:, :64])]
    return Call([*given, *_outputs(n, h * 512)])


def _regroup(generator: torch.Generator, *, n: int, k: int) -> Call:
    values, scales = quantized.rows(generator, n, k)
    if n:
        # Groups of 32 that differ so much that the smaller ones become subnormal, or nothing.
        scales[0] = torch.randint(90, 160, scales[0].shape, generator=generator, dtype=torch.uint8)
        values.view(torch.uint8)[-1, ::3] = torch.arange(len(values[-1, ::3]), dtype=torch.uint8)
    return Call([Argument("values", values), Argument("scales", scales), *_outputs(n, k, prefix="wide_")])


def _rows(
    generator: torch.Generator, *, n: int, topk: int, experts: int, alignment: int, kind: str = "random"
) -> Call:  # fmt: skip
    order, offsets = sorted_choices(choices_of(generator, n, topk, experts, kind), experts)
    rows = most_expert_rows(n * topk, experts, alignment)
    arguments = [
        Argument("order", order),
        Argument("offsets", offsets),
        Argument("ends", torch.full((experts,), 77, dtype=torch.int32), True),
        Argument("choices", torch.full((rows,), 77, dtype=torch.int32), True),
    ]
    return Call(arguments, (experts, alignment))


def cases() -> list[Case]:
    """One row and none, partial programs, strided rows, NaN and infinities, and the real model's widths."""
    return [*_cast_cases(), *_swiglu_cases(), *_other_cases()]


def _cast_cases() -> list[Case]:
    found = []
    for dtype, word in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
        for name, n, k, rows, stride in (
            ("one-row", 1, 128, None, 0), ("partial", 21, 384, None, 0), ("strided", 9, 256, None, 336),
            ("no-rows", 0, 128, None, 0), ("chosen", 7, 256, 45, 0), ("chosen-strided", 7, 128, 13, 144),
        ):  # fmt: skip
            make = partial(_quantize, n=n, k=k, dtype=dtype, rows=rows, stride=stride)
            found.append(Case("quantize_per128", f"quantize-{name}-{word}", make))
        for rows in (None, 30):
            make = partial(_quantize, n=8, k=256, dtype=dtype, spoilt=True, rows=rows)
            found.append(Case("quantize_per128", f"quantize-nan-{word}{'-chosen' if rows else ''}", make))
    for rows in (None, 64):
        for n, k in ((3, 5120), (3, 8192), (4096, 5120)):
            make = partial(_quantize, n=n, k=k, dtype=torch.bfloat16, rows=rows and rows * n, topk=6)
            name = f"quantize-{k}-{n}{'-chosen' if rows else ''}"
            found.append(Case("quantize_per128", name, make, large=n > 3, engine=n == 3))
    return found


def _swiglu_cases() -> list[Case]:
    found = []
    for weighted, word in ((False, "shared"), (True, "routed")):
        for name, m, f in (("one-row", 1, 128), ("partial", 37, 256), ("no-rows", 0, 128)):
            found.append(Case("swiglu_per128", f"swiglu-{name}-{word}", partial(_swiglu, m=m, f=f, weighted=weighted)))
        spoilt = partial(_swiglu, m=9, f=128, weighted=weighted, spoilt=True)
        found.append(Case("swiglu_per128", f"swiglu-nan-{word}", spoilt))
        for m in (3, 24576):
            make = partial(_swiglu, m=m, f=2304, weighted=weighted)
            found.append(Case("swiglu_per128", f"swiglu-{word}-{m}", make, large=m > 3, engine=m == 3))
    return found


def _other_cases() -> list[Case]:
    found = []
    for name, n, h in (("one-head", 1, 1), ("partial", 13, 3), ("no-rows", 0, 4)):
        found.append(Case("rotate_heads_per128", f"rotate-{name}", partial(_rotate, n=n, h=h)))
    found.append(Case("rotate_heads_per128", "rotate-nan", partial(_rotate, n=5, h=2, spoilt=True)))
    for n in (3, 8192):
        make = partial(_rotate, n=n, h=64)
        found.append(Case("rotate_heads_per128", f"rotate-output-{n}", make, large=n > 3, engine=n == 3))
    for name, n, k in (("one-row", 1, 128), ("partial", 11, 384), ("no-rows", 0, 128)):
        found.append(Case("regroup_per128", f"regroup-{name}", partial(_regroup, n=n, k=k)))
    for n in (3, 4096):
        make = partial(_regroup, n=n, k=6144)
        found.append(Case("regroup_per128", f"regroup-memory-{n}", make, large=n > 3, engine=n == 3))
    for name, n, topk, experts, kind in (
        ("one-row", 1, 3, 12, "random"), ("outside", 60, 3, 5, "outside"), ("one-expert", 90, 3, 7, "one"),
        ("none", 5, 2, 3, "none"), ("no-rows", 0, 6, 12, "random"), ("single", 70, 1, 1, "random"),
        ("decode", 33, 6, 384, "outside"),
    ):  # fmt: skip
        for alignment in (64, 128):
            rows = partial(_rows, n=n, topk=topk, experts=experts, alignment=alignment, kind=kind)
            found.append(Case("expert_rows", f"rows-{name}-{alignment}", rows, engine=name == "decode"))
    rows = partial(_rows, n=4096, topk=6, experts=384, alignment=128)
    found.append(Case("expert_rows", "rows-4096", rows, large=True))
    return found
