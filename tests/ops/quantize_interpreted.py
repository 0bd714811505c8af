"""`TRITON_INTERPRET=1 python -m tests.ops.quantize_interpreted`: ops/triton/quantize.py in the interpreter.

Prints one line a check that fails, and exits with 1 if there is one.
"""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl

from deepinfer.ops.launch import launch
from deepinfer.ops.reference import quantize as reference
from deepinfer.ops.triton import quantize as q

BLOCK = 4096


@triton.jit
def _cast(x, e4m3, near, e2m1, bf16, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(e4m3 + at, q.encode_e4m3(value))
    tl.store(near + at, q.nearest_e4m3(value))
    tl.store(e2m1 + at, q.encode_e2m1(value))
    tl.store(bf16 + at, q.narrow(value))


@triton.jit
def _widen(bf16, code, widened, e4m3, e2m1, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(widened + at, q.widen(tl.load(bf16 + at)))
    byte = tl.load(code + at)
    tl.store(e4m3 + at, q.decode_e4m3(byte))
    tl.store(e2m1 + at, q.decode_e2m1(byte.to(tl.int32) & 15))


@triton.jit
def _fma(a, b, c, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, q.fused_multiply_add(tl.load(a + at), tl.load(b + at), tl.load(c + at)))


def every_float_class() -> torch.Tensor:
    """All upper halves of float32 with lower halves at and around every possible tie."""
    high = torch.arange(0, 1 << 16, dtype=torch.int64) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x0FFF])
    return (high[:, None] | low).flatten().to(torch.int32).view(torch.float32)


def _same(name: str, got: torch.Tensor, expected: torch.Tensor) -> bool:
    if got.dtype.is_floating_point:
        nan = got.isnan() & expected.isnan()
        width = {2: torch.int16, 4: torch.int32}[got.element_size()]
        wrong = (got.view(width) != expected.view(width)) & ~nan
    else:
        wrong = got != expected
    if wrong.any():
        first = int(wrong.nonzero()[0])
        print(f"{name}: {int(wrong.sum())} wrong, first at {first}: {got[first]} instead of {expected[first]}")
    return not wrong.any()


def casts() -> bool:
    """Narrow casts of every class of float32."""
    x = every_float_class()
    e4m3, e2m1 = torch.empty(len(x), dtype=torch.uint8), torch.empty(len(x), dtype=torch.int32)
    near, bf16 = torch.empty_like(x), torch.empty(len(x), dtype=torch.bfloat16)
    launch(_cast, (len(x) // BLOCK,), x, e4m3, near, e2m1, bf16, BLOCK=BLOCK)
    packed = reference.encode_e2m1(x).view(torch.uint8).int()
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten()
    return all((
        _same("e4m3", e4m3, reference.encode_e4m3(x).view(torch.uint8)),
        _same("nearest e4m3", near, reference.encode_e4m3(x).float()),
        _same("e2m1", e2m1, codes),
        _same("bfloat16", bf16, x.bfloat16()),
    ))  # fmt: skip


def widenings() -> bool:
    """Every bfloat16, e4m3 and e2m1 value."""
    bf16 = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    code = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint8)
    out = [torch.empty(1 << 16) for _ in range(3)]
    launch(_widen, ((1 << 16) // BLOCK,), bf16, code, *out, BLOCK=BLOCK)
    wide, e4m3, e2m1 = out
    table = reference.decode_e2m1(torch.arange(16, dtype=torch.uint8))[0::2]
    return all((
        _same("widened bfloat16", wide, bf16.float()),
        _same("widened e4m3", e4m3, code.view(torch.float8_e4m3fn).float()),
        _same("widened e2m1", e2m1, table[code.long() & 15]),
    ))  # fmt: skip


def multiply_adds() -> bool:
    """Against the reference's, on values that cancel, differ much, and round twice if done carelessly."""
    generator = torch.Generator().manual_seed(5)
    a, b, c = (torch.randn(16 * BLOCK, generator=generator) for _ in range(3))
    scale = torch.randint(-40, 40, (16 * BLOCK,), generator=generator).float().exp2()
    c = torch.where(torch.arange(len(c)) % 2 == 0, -(a * b), c * scale)
    out = torch.empty_like(a)
    launch(_fma, (16,), a, b, c, out, BLOCK=BLOCK)
    return _same("multiply-add", out, reference.fused_multiply_add(a, b, c))


if __name__ == "__main__":
    sys.exit(0 if all([casts(), widenings(), multiply_adds()]) else 1)
