"""The hyper-connections' kernels in Triton (model_spec 3.2)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.hyper_streams import into_stream, load_streams, mixing, one_of, posted
from deepinfer.ops.triton.quantize import INTERPRETED, narrow, quantize, reciprocal, rounded, widen

PARTS = tl.constexpr(16)
"""Sums over the streams' columns are made in so many parts, whatever the batch; then the parts are added."""
_LINE = tl.constexpr(32)
"""Numbers a row and part: the 24 products, then the two sums of squares, of R' and of h."""
_PRODUCTS = tl.constexpr(24)
_TRUNK_SQUARES = tl.constexpr(24)
_MIX_SQUARES = tl.constexpr(25)
_ROWS = 32
_COLUMNS = 32
_COEFFICIENT_ROWS = 8


@triton.jit
def _product(value, weights, total):
    """total + value weights^T in float32: value holds bfloat16 numbers, weights float32 ones.

    A float32 number is the sum of three of bfloat16, so three bfloat16 products are exact; tensor cores add them up.
    """
    if INTERPRETED:
        return tl.dot(value, tl.trans(weights), acc=total, input_precision="ieee")
    else:
        high = weights.to(tl.bfloat16)
        rest = weights - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        value = value.to(tl.bfloat16)
        total = tl.dot(value, tl.trans(low), acc=total)
        total = tl.dot(value, tl.trans(middle), acc=total)
        return tl.dot(value, tl.trans(high), acc=total)


@triton.jit(do_not_specialize=["rows"])
def _spread(
    trunk, x, post, comb, pre, fn, trunk_out, mixed, partials, rows,
    D: tl.constexpr, POST: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    some = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = some < rows
    row, own = some[:, None], known[:, None]
    part = tl.program_id(1)
    output = tl.arange(0, _LINE)
    total = tl.zeros([ROWS, _LINE], tl.float32)
    trunk_squares = tl.zeros([ROWS], tl.float32)
    mix_squares = tl.zeros([ROWS], tl.float32)
    # Loaded here, once: within the loop they would be loaded again for every column.
    if POST:
        into = (
            into_stream(post, comb, some, known, 0),
            into_stream(post, comb, some, known, 1),
            into_stream(post, comb, some, known, 2),
            into_stream(post, comb, some, known, 3),
        )
    shares = mixing(pre, some, known)
    for start in range(0, PART, COLUMNS):
        column = part * PART + start + tl.arange(0, COLUMNS)[None, :]
        inside = column < D
        mask = own & inside
        place = row * (4 * D) + column
        r0, r1, r2, r3 = load_streams(trunk + place, D, mask)
        if POST:
            given = widen(tl.load(x + row * D + column, mask=mask, other=0.0))
        wanted = (output[:, None] < _PRODUCTS) & inside
        weights = fn + output[:, None] * (4 * D) + column
        for stream in tl.static_range(4):
            if POST:
                value = posted(given, r0, r1, r2, r3, into[stream])
                tl.store(trunk_out + place + stream * D, narrow(value), mask=mask)
            else:
                value = one_of(r0, r1, r2, r3, stream)
            total = _product(value, tl.load(weights + stream * D, mask=wanted, other=0.0), total)
            if stream == 0:
                h = shares[stream] * value
                squares = value * value
            else:
                h += shares[stream] * value
                squares += value * value
        h = rounded(h)
        tl.store(mixed + row * D + column, narrow(h), mask=mask)
        trunk_squares += tl.sum(squares, axis=1)
        mix_squares += tl.sum(h * h, axis=1)
    line = output[None, :]
    total = tl.where(line == _TRUNK_SQUARES, trunk_squares[:, None], total)
    total = tl.where(line == _MIX_SQUARES, mix_squares[:, None], total)
    tl.store(partials + (row * PARTS + part) * _LINE + line, total, mask=own)


@triton.jit
def _summed(partials, row, output, own):
    """The parts' sum of some numbers of some rows. row, output, own: of one shape, with a last dimension of 1."""
    part = tl.arange(0, PARTS)
    shaped = tl.reshape(part, (1, 1, PARTS))
    found = tl.load(partials + (row * PARTS + shaped) * _LINE + output, mask=own, other=0.0)
    return tl.sum(found, axis=2)


@triton.jit
def _root(total, eps, COUNT: tl.constexpr):
    return reciprocal(tl.sqrt_rn(total * (1.0 / COUNT) + eps))


@triton.jit
def _sigmoid(z):
    return reciprocal(1.0 + tl.exp(-z))


@triton.jit
def _sinkhorn(c, hc_eps, ROWS: tl.constexpr, ITERATIONS: tl.constexpr):
    """[ROWS, 4, 4]: softmax of its rows, then columns and rows brought to the sum 1 by turns, columns last."""
    c = tl.exp(c - tl.max(c, axis=2)[:, :, None])
    c = c * reciprocal(tl.sum(c, axis=2))[:, :, None] + hc_eps
    c = c * reciprocal(tl.sum(c, axis=1) + hc_eps)[:, None, :]
    for _ in range(ITERATIONS - 1):
        c = c * reciprocal(tl.sum(c, axis=2) + hc_eps)[:, :, None]
        c = c * reciprocal(tl.sum(c, axis=1) + hc_eps)[:, None, :]
    return c


@triton.jit
def _coefficients(
    partials, base, scale, pre, post, comb, row, own, eps, hc_eps,
    D: tl.constexpr, ROWS: tl.constexpr, ITERATIONS: tl.constexpr,
):  # fmt: skip
    """What ROWS rows give the next sub-layer. row, own: [ROWS]."""
    deep, live = row[:, None, None], own[:, None, None]
    root = _root(_summed(partials, deep, tl.full([1, 1, 1], _TRUNK_SQUARES, tl.int32), live), eps, 4 * D)
    four = tl.arange(0, 4)
    place = row[:, None] * 4 + four[None, :]
    u = _summed(partials, deep, four[None, :, None], live) * root
    value = _sigmoid(u * tl.load(scale) + tl.load(base + four)[None, :]) + hc_eps
    tl.store(pre + place, value, mask=own[:, None])
    u = _summed(partials, deep, four[None, :, None] + 4, live) * root
    value = 2.0 * _sigmoid(u * tl.load(scale + 1) + tl.load(base + 4 + four)[None, :])
    tl.store(post + place, value, mask=own[:, None])
    sixteen = tl.arange(0, 16)
    u = _summed(partials, deep, sixteen[None, :, None] + 8, live) * root
    c = u * tl.load(scale + 2) + tl.load(base + 8 + sixteen)[None, :]
    c = tl.reshape(_sinkhorn(tl.reshape(c, (ROWS, 4, 4)), hc_eps, ROWS, ITERATIONS), (ROWS, 16))
    tl.store(comb + row[:, None] * 16 + sixteen[None, :], c, mask=own[:, None])


@triton.jit
def _norm_tile(partials, norm, y, values, scales, row, start, eps, D: tl.constexpr, COLUMNS: tl.constexpr):
    """h, which y holds, normed and cast: COLUMNS columns of a row from `start` on."""
    column = start + tl.arange(0, COLUMNS)[None, :]
    mask = column < D
    found = tl.load(partials + (row * PARTS + tl.arange(0, PARTS)) * _LINE + _MIX_SQUARES)
    root = _root(tl.sum(tl.reshape(found, (1, PARTS)), axis=1), eps, D)[:, None]
    h = widen(tl.load(y + row * D + column, mask=mask, other=0.0))
    value = rounded(h * root * widen(tl.load(norm + column, mask=mask, other=0.0)))
    tl.store(y + row * D + column, narrow(value), mask=mask)
    codes, steps, _ = quantize(value, "e4m3", 32, True, "ue8m0", 1, COLUMNS)
    tl.store(values + row * D + column, codes, mask=mask)
    group = start // 32 + tl.arange(0, COLUMNS // 32)[None, :]
    tl.store(scales + row * (D // 32) + group, steps, mask=group < D // 32)


@triton.jit(do_not_specialize=["rows", "first", "eps", "hc_eps"])
def _finish(
    partials, base, scale, norm, y, values, scales, pre, post, comb, rows, first, eps, hc_eps,
    D: tl.constexpr, ITERATIONS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (D + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    if program < first:
        some = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        _coefficients(partials, base, scale, pre, post, comb, some, some < rows, eps, hc_eps, D, ROWS, ITERATIONS)
    else:
        tile = program - first
        row = (tile // TILES).to(tl.int64)
        _norm_tile(partials, norm, y, values, scales, row, tile % TILES * COLUMNS, eps, D, COLUMNS)


@functools.cache
def hyper_step(d: int, eps: float, hc_eps: float, iterations: int) -> Kernel:
    """Post, mix, norm with Q8, and the next coefficients, in two launches.

    The first reads the trunk once: a program has 32 rows and a sixteenth of the columns of all four streams, writes R'
    and h there, and its part of u and of the two sums of squares. u is a float32 product: fn is split into three
    bfloat16 numbers, whose products with R' are exact, and added in float32; nothing is rounded to TF32. The second
    can only start when all parts are there. It adds them in a fixed order: a few programs make the coefficients and
    Sinkhorn's turns, eight rows each, and meanwhile the others norm and cast h, tile by tile.
    """
    part = cdiv(cdiv(d, PARTS.value), _COLUMNS) * _COLUMNS
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
        partials = torch.empty((n, PARTS.value, _LINE.value), dtype=torch.float32, device=trunk.device)
        given = (post, comb) if x is not None else (None, None)
        launch(
            _spread, (cdiv(n, _ROWS), PARTS.value), trunk, x, *given, pre, fn, trunk_out, y, partials, n,
            D=d, POST=x is not None, PART=part, ROWS=_ROWS, COLUMNS=_COLUMNS,
            num_warps=4, num_stages=2, enable_fp_fusion=False,
        )  # fmt: skip
        first = cdiv(n, _COEFFICIENT_ROWS)
        launch(
            _finish, (first + n * cdiv(d, columns),), partials, base, scale, norm, y, values.view(torch.uint8), scales,
            pre_out, post_out, comb_out, n, first, eps, hc_eps,
            D=d, ITERATIONS=iterations, ROWS=_COEFFICIENT_ROWS, COLUMNS=columns, num_warps=4,
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
