"""Cases of the casts to FP8 and FP4, and of SwiGLU before one (model_spec 3.0, 3.9)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case, Results
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.tolerance import Tolerance, as_bits

_ONE_STEP = Tolerance(absolute=2.0**-9, relative=2.0**-3)
"""The next value of e4m3: the exponential function may move what lies on the boundary of two."""
_SHARE = 2e-3


def _few_differ(expected: Results, got: Results) -> str:
    """Of the values that `_ONE_STEP` lets differ, no more than a few do."""
    differ = (as_bits(expected["values"]) != as_bits(got["values"])).float()
    share = float(differ.mean()) if differ.numel() else 0.0
    return "" if share <= _SHARE else f"values: {share:.2%} differ by a step, {_SHARE:.2%} at most"


def _outputs(shape: tuple[int, ...], e2m1: bool = False, tolerance: Tolerance | None = None) -> list[Argument]:
    *rows, width = shape
    values = torch.full((*rows, width // 2), 77, dtype=torch.int8)
    if not e2m1:
        values = torch.full(shape, 77, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.full((*rows, width // 32), 77, dtype=torch.uint8)
    compared = tolerance or Tolerance()
    return [Argument("values", values, output=True, tolerance=compared), Argument("scales", scales, output=True)]


def _swiglu(generator: torch.Generator, *, m: int, f: int, weighted: bool, spoilt: bool = False) -> Call:
    gate_up = noise(generator, (m, 2 * f), torch.bfloat16) * 4
    weights = torch.rand(m, generator=generator) * 1.5 if weighted else None
    if spoilt:
        gate_up[0, 3], gate_up[1, f + 5], gate_up[2, :] = torch.nan, torch.inf, -torch.inf
        gate_up[3, 0:8], gate_up[3, f : f + 8], gate_up[4] = 30.0, -40.0, 0.0
        gate_up[5, :f] = -200.0
    arguments = [
        Argument("gate_up", gate_up),
        Argument("weights", weights),
        Argument("limit", 10.0),
        *_outputs((m, f), tolerance=_ONE_STEP),
    ]
    return Call(arguments, (weighted,), judge=_few_differ)


def _values(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, spoilt: bool) -> torch.Tensor:
    """Rows that differ in size by powers of ten; spoilt: some with NaN, infinities, zeros, and the smallest numbers."""
    size = 10.0 ** torch.arange(-7, 6).repeat(shape[0])[: shape[0]].view(-1, *(1,) * (len(shape) - 1))
    x = (noise(generator, shape) * size).to(dtype)
    if spoilt:
        x[0, ..., 3], x[1, ..., 40], x[2], x[3] = torch.nan, torch.inf, torch.nan, 0.0
        x[4, ..., :32], x[5, ..., 7] = 1e-39, -torch.inf
        x[6] = -0.0
    return x


def _fp8(
    generator: torch.Generator, *, n: int, k: int, dtype: torch.dtype, stride: int = 0, spoilt: bool = False
) -> Call:
    x = _values(generator, (n, stride or k), dtype, spoilt)[:, :k]
    return Call([Argument("x", x), *_outputs((n, k))])


def _fp4(generator: torch.Generator, *, n: int, h: int, d: int, spoilt: bool = False) -> Call:
    x = _values(generator, (n, h, d), torch.bfloat16, spoilt)
    return Call([Argument("x", x), *_outputs((n, h, d), e2m1=True)])


def cases() -> list[Case]:
    """Partial tiles, rows of odd groups, one row and none, NaN and infinities, and the real model's widths."""
    found = []
    for name, m, f in (("one-row", 1, 32), ("partial", 37, 160), ("no-rows", 0, 64)):
        for weighted in (False, True):
            make = partial(_swiglu, m=m, f=f, weighted=weighted)
            found.append(Case("swiglu_quantize", f"swiglu-{name}{'-weighted' if weighted else ''}", make))
    for weighted in (False, True):
        word = "routed" if weighted else "shared"
        spoilt = partial(_swiglu, m=7, f=64, weighted=weighted, spoilt=True)
        found.append(Case("swiglu_quantize", f"swiglu-nan-{word}", spoilt))
        for m in (3, 24576):
            make = partial(_swiglu, m=m, f=2304, weighted=weighted)
            found.append(Case("swiglu_quantize", f"swiglu-{word}-{m}", make, large=m > 3, engine=m == 3))
    for dtype, word in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
        for name, n, k, stride in (("one-row", 1, 32, 0), ("partial", 41, 160, 0), ("strided", 9, 128, 336),
                                   ("no-rows", 0, 64, 0)):  # fmt: skip
            make8 = partial(_fp8, n=n, k=k, dtype=dtype, stride=stride)
            found.append(Case("quantize_fp8", f"fp8-{name}-{word}", make8))
        found.append(Case("quantize_fp8", f"fp8-nan-{word}", partial(_fp8, n=8, k=96, dtype=dtype, spoilt=True)))
        for k in (5120, 1280, 8192):
            for n in (3, 8192):
                make8 = partial(_fp8, n=n, k=k, dtype=dtype)
                found.append(Case("quantize_fp8", f"fp8-{k}-{n}-{word}", make8, large=n > 3, engine=n == 3))
    for name, n, h, d in (("one-head", 1, 1, 32), ("partial", 5, 7, 96), ("no-rows", 0, 2, 128)):
        found.append(Case("quantize_fp4", f"fp4-{name}", partial(_fp4, n=n, h=h, d=d)))
    found.append(Case("quantize_fp4", "fp4-nan", partial(_fp4, n=8, h=2, d=128, spoilt=True)))
    for n in (3, 8192):
        make4 = partial(_fp4, n=n, h=32, d=128)
        found.append(Case("quantize_fp4", f"fp4-index-{n}", make4, large=n > 3, engine=n == 3))
    return found
