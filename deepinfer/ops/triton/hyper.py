"""The hyper-connections' kernels in Triton (model_spec 3.2)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.hyper_finish import finish
from deepinfer.ops.triton.hyper_spread import BLOCK, LINE, PARTS, spread
from deepinfer.ops.triton.hyper_streams import into_stream, load_streams, mixing, one_of, posted
from deepinfer.ops.triton.quantize import narrow, widen

_FEW_ROWS = 256
"""Up to so many rows every block of columns gets a program of its own."""


class _Tiles(NamedTuple):
    """rows: of a program of `spread`. stages: of its loop over blocks. registers: of a thread at most."""

    rows: int
    warps: int
    stages: int = 1
    registers: int | None = None


_FEW = _Tiles(16, 4)
_MANY = _Tiles(64, 8, stages=2, registers=128)
"""Few enough registers for two programs a multiprocessor."""


@functools.cache
def hyper_step(d: int, eps: float, hc_eps: float, iterations: int) -> Kernel:
    """Post, mix, norm with Q8, and the next coefficients, in two launches.

    The first (`spread`) reads the trunk once: a program has some rows and some columns of all four streams, writes R'
    and h there, and its part of u and of the two sums of squares. u is a float32 product: fn is split into three
    bfloat16 numbers, whose products with R' are exact, and added in float32; nothing is rounded to TF32. The second
    (`finish`) can only start when all parts are there. It adds them in a fixed order: a program for each row makes the
    coefficients and Sinkhorn's turns, and meanwhile the others norm and cast h, tile by tile.

    A few rows give programs enough only if each has a single block of columns, whose sum it leaves to the second
    launch; of many rows a program adds up a part's blocks itself. Both add the same numbers in the same order.
    """
    blocks = cdiv(cdiv(d, PARTS.value), BLOCK.value)
    columns = min(max(next_power_of_2(d), 32), 1024)

    def run(
        trunk: torch.Tensor,
        x: torch.Tensor | None,
        post: torch.Tensor | None,
        comb: torch.Tensor | None,
        pre: torch.Tensor,
        fn: torch.Tensor,
        base: torch.Tensor,
        scale: torch.Tensor,
        norm: torch.Tensor,
        trunk_out: torch.Tensor,
        y: torch.Tensor,
        values: torch.Tensor,
        scales: torch.Tensor,
        pre_out: torch.Tensor,
        post_out: torch.Tensor,
        comb_out: torch.Tensor,
    ) -> None:
        n = trunk.shape[0]
        tiles, left = (_FEW, blocks) if n <= _FEW_ROWS else (_MANY, 1)
        parts = PARTS.value * left
        products = torch.empty((n, parts, LINE.value), dtype=torch.float32, device=trunk.device)
        squares = torch.empty((n, parts), dtype=torch.float32, device=trunk.device)
        given = (post, comb) if x is not None else (None, None)
        launch(
            spread, (cdiv(n, tiles.rows), parts), trunk, x, *given, pre, fn, trunk_out, y, products, squares, n,
            D=d, POST=x is not None, BLOCKS=blocks // left, ROWS=tiles.rows,
            num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers,
            enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
        launch(
            finish, (n * (1 + cdiv(d, columns)),), products, squares, base, scale, norm, y, values.view(torch.uint8),
            scales, pre_out, post_out, comb_out, n, eps, hc_eps,
            D=d, BLOCKS=left, ITERATIONS=iterations, COLUMNS=columns,
            num_warps=1, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip

    return run


@triton.jit
def _mix(
    trunk, x, post, comb, pre, trunk_out, mixed,
    D: tl.constexpr, POST: tl.constexpr, KEEP: tl.constexpr, MIX: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = column < D
    place = row[:, None] * (4 * D) + column
    r0, r1, r2, r3 = load_streams(trunk + place, D, mask)
    if POST:
        given = widen(tl.load(x + row[:, None] * D + column, mask=mask, other=0.0))
    if MIX:
        shares = mixing(pre, row, row >= 0)
    for stream in tl.static_range(4):
        if POST:
            value = posted(given, r0, r1, r2, r3, into_stream(post, comb, row, row >= 0, stream))
        else:
            value = one_of(r0, r1, r2, r3, stream)
        if KEEP:
            tl.store(trunk_out + place + stream * D, narrow(value), mask=mask)
        if MIX:
            if stream == 0:
                h = shares[stream] * value
            else:
                h += shares[stream] * value
    if MIX:
        tl.store(mixed + row[:, None] * D + column, narrow(h), mask=mask)


def _launch_mix(
    d: int,
    trunk: torch.Tensor,
    x: torch.Tensor | None,
    post: torch.Tensor | None,
    comb: torch.Tensor | None,
    pre: torch.Tensor | None,
    trunk_out: torch.Tensor | None,
    mixed: torch.Tensor | None,
) -> None:
    columns = min(max(next_power_of_2(d), 32), 1024)
    given = (x, post, comb) if x is not None else (None, None, None)
    launch(
        _mix, (trunk.shape[0], cdiv(d, columns)), trunk, *given, pre, trunk_out, mixed,
        D=d, POST=x is not None, KEEP=trunk_out is not None, MIX=mixed is not None, COLUMNS=columns,
        num_warps=max(columns // 256, 1), enable_fp_fusion=False,
    )  # fmt: skip


@functools.cache
def hyper_post(d: int) -> Kernel:
    """The trunk after a sub-layer. One launch."""

    def run(
        trunk: torch.Tensor, x: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, trunk_out: torch.Tensor
    ) -> None:
        _launch_mix(d, trunk, x, post, comb, None, trunk_out, None)

    return run


@functools.cache
def hyper_leave(d: int) -> Kernel:
    """The streams after a sub-layer, mixed. One launch."""

    def run(
        trunk: torch.Tensor,
        x: torch.Tensor | None,
        post: torch.Tensor | None,
        comb: torch.Tensor | None,
        pre: torch.Tensor,
        h: torch.Tensor,
    ) -> None:
        _launch_mix(d, trunk, x, post, comb, pre, None, h)

    return run
