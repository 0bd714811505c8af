"""Products of rows with a quantised weight: what linear layers and experts share (model_spec 2.3, 3.0).

The weight is the side of a product that has 64 rows a warp group, the rows of activations the side of 16 and more, so
that a step of few rows computes and decodes little for rows that are not there. The weight's codes go from memory to
shared memory as they are, and from there to the registers in which they are decoded (`weight_codes`). Activations are
decoded once, before, by `decode_row`. Sums are made 16 columns at a time in the order of columns, so that every choice
of tiles gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from deepinfer.ops.triton.product import operand
from deepinfer.ops.triton.quantize import INTERPRETED, decode_e4m3, decode_ue8m0, narrow
from deepinfer.ops.triton.weight_codes import column_at, dequantised

ROW_COLUMNS = 1024
"""Columns of a row that one program decodes."""
_ASYNCHRONOUS_BYTES = 4
"""What a thread has to copy at least for Triton to make asynchronous copies of a load."""


@dataclass(frozen=True)
class Tiles:
    """A program's part of a product.

    m: rows of the weight. n: rows of activations. k: columns of a step. warps: of a program. stages: steps whose loads
    are under way. registers: at most so many a thread, for more programs at once.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    registers: int | None = None

    def constants(self, outputs: int, k: int) -> dict[str, Any]:
        """The kernel's constants and Triton's options for a weight [outputs, k]."""
        own: dict[str, Any] = {
            "M": self.m, "N": self.n, "K": self.k, "EVEN": outputs % self.m == 0 and k % self.k == 0,
            "AHEAD": self.m * self.k // 32 < _ASYNCHRONOUS_BYTES * 32 * self.warps,
            "num_warps": self.warps, "num_stages": self.stages, "launch_pdl": True,
        }  # fmt: skip
        return own if self.registers is None else {**own, "maxnreg": self.registers}

    def units(self, outputs: int, k: int) -> int:
        """The weight's columns as `weight_sums` counts them."""
        return k // (self.k if self.constants(outputs, k)["EVEN"] else 32)


def decoded(rows: int, k: int, device: torch.device) -> torch.Tensor:
    """Room for activations as `decode_row` writes them: bfloat16 [rows, k]."""
    return torch.empty((rows, k), dtype=torch.bfloat16, device=device)


@triton.jit
def decode_row(values, scales, x, row, part, groups, FP4: tl.constexpr, COLUMNS: tl.constexpr):
    """x[row] = COLUMNS of a row of activations, from part * COLUMNS on, in the order of the weight's tiles.

    values: e4m3 as uint8, scales: uint8 a group of 32 columns, of which a row has `groups`; row int64.
    """
    place = part * COLUMNS + tl.arange(0, COLUMNS)
    mask = place < groups * 32
    code = tl.load(values + row * (groups * 32) + column_at(place, FP4), mask=mask, other=0)
    scale = tl.load(scales + row * groups + place // 32, mask=mask, other=0)
    tl.store(x + row * (groups * 32) + place, narrow(decode_e4m3(code) * decode_ue8m0(scale)), mask=mask)


@triton.jit
def _scales(at, inside, step, steps, depth, EVEN: tl.constexpr, AHEAD: tl.constexpr, K: tl.constexpr):
    """The scales of a step: uint8 [M, K / 32]; 0 where there are none."""
    if EVEN:
        if AHEAD:  # behind the last step there is one that is asked for all the same
            return tl.load(at + step * (K // 32), mask=inside[:, None] & (step < steps), other=0)
        else:
            return tl.load(at + step * (K // 32))
    else:
        group = step * (K // 32) + tl.arange(0, K // 32)
        return tl.load(at + step * (K // 32), mask=inside[:, None] & (group < depth // 32)[None, :], other=0)


@triton.jit
def _finished(sums):
    """The sums, when tensor cores have finished them.

    They are used by something that is no product, which takes no instruction: so no product is under way at the end of
    a loop, as Triton would have it otherwise. ptxas makes wrong code of those (`ops/machine_code.py`).
    """
    if INTERPRETED:
        return sums
    else:
        return tl.inline_asm_elementwise("", "=f,0", [sums], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def weight_sums(
    x, row, live, weight, scales, column, inside, units,
    FP4: tl.constexpr, SHARED: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Rows of the weight times rows of activations: float32 [M, N].

    x: what `decode_row` wrote; row: int64 [N], its rows, of which those that are `live` are read.
    weight: of four codes an element; column: int32 [M], its rows, of which those `inside` are read; scales: uint8, a
    row of them for each SHARED rows of the weight.
    units: the weight's columns, in steps of K where EVEN (no row is outside, no step is partly filled), else in 32s.
    AHEAD: scales are loaded a step before they are used, as they are too few for asynchronous copies.
    """
    depth = units * (K if EVEN else 32)
    steps = units if EVEN else (depth + K - 1) // K
    four = tl.arange(0, K // 4)
    own = tl.arange(0, K)
    wide = column.to(tl.int64)[:, None]
    codes_at = weight + wide * (depth // 4) + four[None, :]
    scales_at = scales + wide // SHARED * (depth // 32) + tl.arange(0, K // 32)[None, :]
    x_at = x + row[:, None] * depth + own[None, :]
    sums = tl.zeros([M, N], tl.float32)
    if AHEAD:
        scale = _scales(scales_at, inside, 0, steps, depth, EVEN, AHEAD, K)
    for step in range(steps):
        if AHEAD:
            following = _scales(scales_at, inside, step + 1, steps, depth, EVEN, AHEAD, K)
        else:
            scale = _scales(scales_at, inside, step, steps, depth, EVEN, AHEAD, K)
        if EVEN:
            codes = tl.load(codes_at + step * (K // 4))
            rows = tl.load(x_at + step * K, mask=live[:, None], other=0.0)
        else:
            mask = inside[:, None] & (step * (K // 4) + four < depth // 4)[None, :]
            codes = tl.load(codes_at + step * (K // 4), mask=mask, other=0)
            rows = tl.load(x_at + step * K, mask=live[:, None] & (step * K + own < depth)[None, :], other=0.0)
        sums = _finished(tl.dot(dequantised(codes, scale, FP4, M, K), tl.trans(operand(rows)), sums))
        if AHEAD:
            scale = following
    return sums
