"""Cases of the products with the model's weights (model_spec 2.2, 3.0, 3.3)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.cases import quantized
from deepinfer.ops.cases.noise import noise

_BF16, _FP32 = torch.bfloat16, torch.float32
_TOLERANCE = {_BF16: quantized.BF16_PRODUCT, _FP32: quantized.FP32_PRODUCT}


def _fp8(
    generator: torch.Generator, *, n: int, k: int, o: int, dtype: torch.dtype, groups: int = 0, spoilt: str = ""
) -> Call:
    """spoilt: the argument in whose row 1 a value is NaN."""
    parts = (n, groups, k) if groups else (n, k)
    values, scales = quantized.rows(generator, *parts)
    weight, weight_scales = quantized.fp8_weight(generator, o * max(groups, 1), k)
    if spoilt:
        {"values": values, "weight": weight}[spoilt].view(torch.uint8)[1, k // 2] = 0xFF if spoilt == "weight" else 0x7F
    out = torch.full((n, len(weight)), 77.0, dtype=dtype)
    arguments = [
        Argument("values", values),
        Argument("scales", scales),
        Argument("weight", weight),
        Argument("weight_scales", weight_scales),
        Argument("out", out, output=True, tolerance=_TOLERANCE[dtype]),
    ]
    return Call(arguments, (groups, o, k) if groups else (o, k, dtype))


def _bytes(generator: torch.Generator, *, k: int, columns: range) -> Call:
    """Every byte that is a number with every scale from 10 to 246: row i is 1 in columns[i] and 0 elsewhere, so that
    the result is what the weight's columns stand for.
    """
    weight_scales = torch.arange(10, 247, dtype=torch.uint8)[:, None].expand(-1, k // quantized.GROUP).contiguous()
    values, scales = quantized.unit_rows(columns, k)
    outputs = len(weight_scales) * quantized.GROUP
    # 16 bytes next to each other a row, and other ones in the next row: each byte twice a block in any 16 columns.
    codes = torch.arange(outputs)[:, None] * 16 + torch.arange(k)[None, :] % 16
    codes = torch.where(codes % 128 == 0x7F, 0x38, codes % 256).to(torch.uint8)
    arguments = [
        Argument("values", values),
        Argument("scales", scales),
        Argument("weight", codes.view(torch.float8_e4m3fn)),
        Argument("weight_scales", weight_scales),
        Argument("out", noise(generator, (len(columns), outputs), _FP32), True, quantized.SAME_NUMBERS),
    ]
    return Call(arguments, (outputs, k, _FP32))


def _bf16(generator: torch.Generator, *, n: int, k: int, o: int, dtype: torch.dtype, accumulate: bool) -> Call:
    arguments = [
        Argument("x", noise(generator, (n, k), _BF16)),
        Argument("weight", noise(generator, (o, k), _BF16) * k**-0.5),
        Argument("out", noise(generator, (n, o), dtype), output=True, tolerance=_TOLERANCE[dtype]),
    ]
    return Call(arguments, (k, dtype, accumulate))


def cases() -> list[Case]:
    """Partial tiles on every side, no rows, a row with NaN; the real model's widths for a few rows and for many."""
    return [*_fp8_cases(), *_grouped_cases(), *_bf16_cases()]


def _fp8_cases() -> list[Case]:
    found = []
    for name, n, k, o in (("one-row", 1, 96, 64), ("two-tiles", 70, 160, 96), ("odd-outputs", 3, 128, 72),
                          ("no-rows", 0, 64, 32), ("several", 5, 384, 192), ("even-5", 5, 512, 128),
                          ("even-20", 20, 256, 64), ("even-70", 70, 128, 128)):  # fmt: skip
        for dtype in (_BF16, _FP32):
            make = partial(_fp8, n=n, k=k, o=o, dtype=dtype)
            found.append(Case("fp8_linear", f"{name}-{_word(dtype)}", make))
    for spoilt, n in (("values", 3), ("weight", 3), ("weight", 20)):
        make = partial(_fp8, n=n, k=96, o=64, dtype=_BF16, spoilt=spoilt)
        found.append(Case("fp8_linear", f"nan-{spoilt}-{n}", make))
    for name, k, columns in (("16", 32, range(16)), ("32", 32, range(32)), ("160", 160, range(160))):
        found.append(Case("fp8_linear", f"every-byte-{name}", partial(_bytes, k=k, columns=columns)))
    # [wq_a; wkv], wq_a, wkv, three wkv of the draft, [wq_b; indexer.wq_b], wq_b, indexer.wq_b, wo_b; the shared expert,
    # up and down; the draft's main_proj; the n-gram memory's wkv, a part of it. All have the same variants, of which
    # there is one for a few rows, for some and for many. 200 rows are some where outputs are few.
    widths = (5120, 1792), (5120, 1280), (5120, 512), (5120, 1536), (1280, 36864), (1280, 32768), (1280, 4096)
    for k, o in (*widths, (8192, 5120), (5120, 4608), (2304, 5120), (15360, 5120), (6144, 8192)):
        for n in (3, 40, 200, 2048):
            make = partial(_fp8, n=n, k=k, o=o, dtype=_BF16)
            engine = n == 3 or (k, o) == (1280, 4096)
            found.append(Case("fp8_linear", f"{k}-{o}-{n}-rows", make, large=True, engine=engine))
    return found


def _grouped_cases() -> list[Case]:
    found = []
    for name, n, groups, k, o in (("one-row", 1, 3, 64, 32), ("two-tiles", 67, 2, 96, 96), ("no-rows", 0, 2, 32, 32)):
        make = partial(_fp8, n=n, groups=groups, k=k, o=o, dtype=_BF16)
        found.append(Case("fp8_grouped_linear", name, make))
    for n in (3, 40, 2048):
        make = partial(_fp8, n=n, groups=8, k=4096, o=1024, dtype=_BF16)
        found.append(Case("fp8_grouped_linear", f"wo-a-{n}-rows", make, large=True, engine=n == 3))
    return found


def _bf16_cases() -> list[Case]:
    found = []
    for name, n, k, o in (("one-row", 1, 96, 24), ("two-tiles", 66, 160, 65), ("no-rows", 0, 64, 32)):
        for dtype, accumulate in ((_BF16, False), (_FP32, False), (_FP32, True)):
            make = partial(_bf16, n=n, k=k, o=o, dtype=dtype, accumulate=accumulate)
            found.append(Case("bf16_linear", f"plain-{name}-{_word(dtype)}{'-added' if accumulate else ''}", make))
    # Gates, compressors with the index weights, the index keys; the head and the Markov head, a part of each that has
    # the same compile-time parameters.
    for k, o, dtype, accumulate in (
        (5120, 384, _FP32, False), (5120, 128, _FP32, False), (5120, 1056, _FP32, False), (5120, 544, _BF16, False),
        (5120, 32, _BF16, False), (512, 128, _BF16, False), (5120, 16160, _FP32, False), (256, 16160, _FP32, True),
    ):  # fmt: skip
        for n in (3, 2048):
            make = partial(_bf16, n=n, k=k, o=o, dtype=dtype, accumulate=accumulate)
            found.append(Case("bf16_linear", f"plain-{k}-{o}-{n}-rows-{_word(dtype)}", make, True, engine=n == 3))
    return found


def _word(dtype: torch.dtype) -> str:
    return "bf16" if dtype == _BF16 else "f32"
