"""`norm_tl` in Triton (kernel_spec A.14)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.quantize import INTERPRETED, narrow, quantize, rounded, widen
from deepinfer.ops.triton.rms import add_behind, chunk_sums, reciprocal_root, row_sums
from deepinfer.ops.triton.rows import levels, tile


@triton.jit
def _plus(x, added):
    """The sum of two bfloat16, rounded once.

    float32's sum rounded to bfloat16 is the same: where it is not exact, the smaller is below 2^-16 of the larger, far
    from where a second rounding would matter.
    """
    if INTERPRETED:
        return narrow(widen(x) + widen(added))
    else:
        return tl.inline_asm_elementwise(
            "add.rn.bf16x2 $0, $1, $2;", "=r,r,r", [x, added], dtype=tl.bfloat16, is_pure=True, pack=2
        )


@triton.jit
def _wide(x):
    """bfloat16 or float32 -> float32: two at once, with an instruction each."""
    if INTERPRETED or x.dtype == tl.float32:
        return widen(x)
    else:
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2
        )


@triton.jit
def _store(pointer, value, mask):
    """Store float32 as what `pointer` points to: float32 or bfloat16."""
    if pointer.dtype.element_ty == tl.float32:
        tl.store(pointer, value, mask=mask)
    else:
        tl.store(pointer, narrow(value), mask=mask)


@triton.jit
def _store_scales(scales, sf, sf_row, live, sf_g, group, PACKED: tl.constexpr, GROUPS: tl.constexpr):
    """scales [ROWS, n] of groups [1, n] to rows from element sf_row on: floats, or bytes of int32, group 0 lowest."""
    mask = live & (group < GROUPS)
    if PACKED:
        bytes_of_words = sf.to(tl.pointer_type(tl.uint8), bitcast=True)
        place = (sf_row + (group // 4).to(tl.int64) * sf_g) * 4 + group % 4
        tl.store(bytes_of_words + place, scales, mask=mask)
    else:
        tl.store(sf + sf_row + group.to(tl.int64) * sf_g, scales, mask=mask)


@triton.jit
def _store_shared(exponents, shared_sf, token, live, line, group, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """exponents, uint8 [ROWS, n], to where a fused expert kernel with tiles of BLOCK_M tokens reads them."""
    ALIGNED: tl.constexpr = (BLOCK_M + 127) // 128 * 128
    within = token % BLOCK_M
    row = token // BLOCK_M * ALIGNED + within // 128 * 128 + within % 32 * 4 + within % 128 // 32
    place = (group // 4).to(tl.int64) * line + row.to(tl.int64) * 4 + group % 4
    tl.store(shared_sf + place, exponents, mask=live & (group < GROUPS))


@triton.jit
def _load(pointer, mask, WHOLE: tl.constexpr):
    """WHOLE: all of it is there, whatever the mask."""
    if WHOLE:
        return tl.load(pointer)
    else:
        return tl.load(pointer, mask=mask, other=0.0)


@triton.jit
def _read(
    x, residual, w, column, live,
    D: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Columns of the rows to be normed, of what is added to them, and their weights.

    The weights come last: all programs read the same, and where all ask for them at once, before the rows that keep
    them apart, they wait in line (0.6 us of 256 rows' 3 us, prefetches likewise).
    """
    mask = live & (column < D)
    value = _load(x + column, mask, WHOLE)
    added = value
    if RESIDUAL:
        added = _load(residual + column, mask, WHOLE)
    gains = w + column
    inside = column < D
    if WIDTH < 256:
        # A row of weights alone would be spread over the threads otherwise than the rows, and move them to it.
        gains, inside = tl.broadcast_to(gains, (ROWS, WIDTH)), tl.broadcast_to(inside, (ROWS, WIDTH))
    return value, added, _load(gains, inside, WHOLE)


@triton.jit
def _sum(value, added, residual_out, column, live, D: tl.constexpr, RESIDUAL: tl.constexpr, WHOLE: tl.constexpr):
    """What is normed, as float32; with a residual also written."""
    if RESIDUAL:
        value = value + added if value.dtype == tl.float32 else _plus(value, added)
        tl.store(residual_out + column, value, mask=None if WHOLE else live & (column < D))
    return _wide(value)


@triton.jit
def _write(
    value, root, weight, w, y, sf, shared_sf, y_origin, sf_row, token, live, out_scale, sf_g, line,
    D: tl.constexpr, CAST: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, PACKED: tl.constexpr,
    ORIGIN: tl.constexpr, BLOCK_M: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, START: tl.constexpr,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Norm columns START to START + WIDTH and write all that goes with them."""
    gains = _wide(weight)
    if SCALED:
        gains = gains * out_scale
    out = value * root * gains
    column = START + tl.arange(0, WIDTH)[None, :]
    mask = None if WHOLE else live & (column < D)
    if CAST:
        out = rounded(out) if w.dtype.element_ty == tl.bfloat16 else out
        if ORIGIN:
            _store(y_origin + column, out, mask)
        SF: tl.constexpr = "ue8m0" if PACKED else "fp32"
        codes, scales, numbers = quantize(out, "e4m3", GROUP, ROUND, SF, ROWS, WIDTH)
        # A thread stores the eight values that it holds: a hint, or it would hold sixteen from the first load on. It is
        # lost in a sum with START, which may be none, and on columns that come from the caller.
        near = tl.max_contiguous(tl.arange(0, WIDTH)[None, :], [1, 8])
        tl.store(y + START + near, codes, mask=mask)
        group = START // GROUP + tl.arange(0, WIDTH // GROUP)[None, :]
        _store_scales(scales, sf, sf_row, live, sf_g, group, PACKED, D // GROUP)
        if BLOCK_M:
            exponents = (numbers.to(tl.int32, bitcast=True) >> 23).to(tl.uint8)
            _store_shared(exponents, shared_sf, token, live, line, group, BLOCK_M, D // GROUP)
    else:
        _store(y + column, out, mask)


@triton.jit(do_not_specialize=["rows", "tokens", "eps", "out_scale", "sf_g", "line"])
def _norm(
    x, y, w, residual, residual_out, sf, shared_sf, y_origin,
    rows, tokens, eps, out_scale,
    x_b, x_s, y_b, y_s, r_b, r_s, t_b, t_s, o_b, o_s, sf_b, sf_s, sf_g, line,
    D: tl.constexpr, RESIDUAL: tl.constexpr, CAST: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr,
    PACKED: tl.constexpr, ORIGIN: tl.constexpr, BLOCK_M: tl.constexpr, SCALED: tl.constexpr, BATCHES: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, MORE: tl.constexpr, LEVELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    # Where rows lie is worked out before the wait: it needs no memory.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    live = row < rows
    place, token = (tl.program_id(0), row) if ROWS == 1 else (row, row)
    batch = place * 0
    if BATCHES:
        batch, place, token = place // tokens, place % tokens, token % tokens
    batch, at = batch.to(tl.int64), place.to(tl.int64)
    x += batch * x_b + at * x_s
    y += batch * y_b + at * y_s
    residual += batch * r_b + at * r_s
    residual_out += batch * t_b + at * t_s
    y_origin += batch * o_b + at * o_s
    sf_row = batch * sf_b + at * sf_s + tl.zeros((ROWS, 1), tl.int64)
    WHOLE: tl.constexpr = ROWS == 1 and D >= WIDTH
    WHOLE_BEHIND: tl.constexpr = ROWS == 1 and D == WIDTH + MORE
    column = tl.arange(0, WIDTH)[None, :]
    await_inputs()
    value, added, weight = _read(x, residual, w, column, live, D, RESIDUAL, ROWS, WIDTH, WHOLE)
    # A row that is no power of two wide goes on in a second, narrower tile.
    if MORE > 0:
        behind = WIDTH + tl.arange(0, MORE)[None, :]
        rest, more, gains = _read(x, residual, w, behind, live, D, RESIDUAL, ROWS, MORE, WHOLE_BEHIND)
    value = _sum(value, added, residual_out, column, live, D, RESIDUAL, WHOLE)
    sums = chunk_sums(value, ROWS, WIDTH)
    if MORE > 0:
        rest = _sum(rest, more, residual_out, behind, live, D, RESIDUAL, WHOLE_BEHIND)
        sums = add_behind(sums, chunk_sums(rest, ROWS, MORE), ROWS, WIDTH // 16, MORE // 16)
    root = reciprocal_root(row_sums(sums, ROWS, WIDTH // 16, LEVELS, WARPS), eps, D)[:, None]
    _write(
        value, root, weight, w, y, sf, shared_sf, y_origin, sf_row, token, live, out_scale, sf_g, line,
        D, CAST, GROUP, ROUND, PACKED, ORIGIN, BLOCK_M, SCALED, ROWS, 0, WIDTH, WHOLE,
    )  # fmt: skip
    if MORE > 0:
        _write(
            rest, root, gains, w, y, sf, shared_sf, y_origin, sf_row, token, live, out_scale, sf_g, line,
            D, CAST, GROUP, ROUND, PACKED, ORIGIN, BLOCK_M, SCALED, ROWS, WIDTH, MORE, WHOLE_BEHIND,
        )  # fmt: skip


def _tiles(width: int) -> tuple[int, int, int, int]:
    """(rows, columns, more columns, warps) of a program.

    A row that is no power of two wide is a tile of the largest power of two in it and one for the rest, so that few
    lanes idle: 5120 = 4096 + 1024.
    """
    columns = next_power_of_2(width)
    if columns == width or columns <= 512:
        rows, columns, warps = tile(width)
        return rows, columns, 0, warps
    more = max(next_power_of_2(width - columns // 2), 256)
    return 1, columns // 2, more, max(columns // 2048, more // 2048, 1)


@functools.cache
def norm_tl(
    d: int,
    dtype: str,
    return_dtype: str,
    reduce_dtype: str = "float",
    has_residual: bool = False,
    eps: float = 1e-6,
    out_scale: float = 1.0,
    do_fp8_cast: bool = False,
    num_per_channels: int = 0,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    return_origin_out: bool = False,
    xdim: int = 3,
    shared_sf_block_m: int = 0,
    x_stride_s: int = 0,
    y_stride_s: int = 0,
    residual_stride_s: int = 0,
    residual_out_stride_s: int = 0,
    y_origin_stride_s: int = 0,
    sf_stride_s: int = 0,
) -> Kernel:
    """RMS norm of rows, with a sum before it and a cast to e4m3 after it.

    The strides are upstream's; the tensors' own are used. use_tma_aligned_col_major_sf: likewise told by sf's strides.
    """
    rows, columns, more, warps = _tiles(d)
    constants = {
        "D": d, "RESIDUAL": has_residual, "CAST": do_fp8_cast, "GROUP": num_per_channels or columns,
        "ROUND": round_sf, "PACKED": use_packed_ue8m0, "ORIGIN": return_origin_out, "BLOCK_M": shared_sf_block_m,
        "SCALED": out_scale != 1.0, "ROWS": rows, "WIDTH": columns, "MORE": more, "LEVELS": levels(columns),
        "WARPS": warps, "num_warps": warps, "enable_fp_fusion": False, "launch_pdl": True,
    }  # fmt: skip

    def run(
        x: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor,
        residual: torch.Tensor,
        residual_out: torch.Tensor,
        sf: torch.Tensor,
        shared_sf: torch.Tensor,
        y_origin: torch.Tensor,
    ) -> None:
        total = x.shape[0] * x.shape[1]
        y = y.view(torch.uint8) if do_fp8_cast else y
        strided = (x, y, residual, residual_out, y_origin, sf)
        # Of a single batch no stride is needed, and it would be one more number to compile for.
        strides = [step for one in strided for step in (one.stride(0) if len(x) > 1 else 0, one.stride(1))]
        launch(
            _norm, (cdiv(total, rows),), x, y, w, residual, residual_out, sf, shared_sf, y_origin,
            total, x.shape[1], eps, out_scale, *strides, sf.stride(2), shared_sf.stride(1),
            BATCHES=len(x) > 1, **constants,
        )  # fmt: skip

    return run
