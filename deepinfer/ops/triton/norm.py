"""`norm_tl` in Triton (kernel_spec A.14)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.quantize import narrow, quantize, widen
from deepinfer.ops.triton.rms import reciprocal_root
from deepinfer.ops.triton.rows import levels, tile


@triton.jit
def _rounded(value, like):
    """float32 -> the type of `like`."""
    if like.dtype == tl.float32:
        return value
    else:
        return narrow(value)


@triton.jit
def _store_scales(
    scales, sf, sf_row, live, sf_g, PACKED: tl.constexpr, GROUPS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """scales [ROWS, SLOTS] to rows that start at element sf_row: floats, or bytes of int32, group 0 lowest."""
    group = tl.arange(0, SLOTS)[None, :]
    mask = live & (group < GROUPS)
    if PACKED:
        bytes_of_words = sf.to(tl.pointer_type(tl.uint8), bitcast=True)
        place = (sf_row + (group // 4).to(tl.int64) * sf_g) * 4 + group % 4
        tl.store(bytes_of_words + place, scales, mask=mask)
    else:
        tl.store(sf + sf_row + group.to(tl.int64) * sf_g, scales, mask=mask)


@triton.jit
def _store_shared(
    exponents, shared_sf, token, live, line, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr, SLOTS: tl.constexpr
):
    """exponents, uint8 [ROWS, SLOTS], to where a fused expert kernel with tiles of BLOCK_M tokens reads them."""
    ALIGNED: tl.constexpr = (BLOCK_M + 127) // 128 * 128
    within = token % BLOCK_M
    row = token // BLOCK_M * ALIGNED + within // 128 * 128 + within % 32 * 4 + within % 128 // 32
    group = tl.arange(0, SLOTS)[None, :]
    place = (group // 4).to(tl.int64) * line + row.to(tl.int64) * 4 + group % 4
    tl.store(shared_sf + place, exponents, mask=live & (group < GROUPS))


@triton.jit(do_not_specialize=["rows", "tokens", "eps", "out_scale"])
def _norm(
    x, y, w, residual, residual_out, sf, shared_sf, y_origin,
    rows, tokens, eps, out_scale,
    x_b, x_s, y_b, y_s, r_b, r_s, t_b, t_s, o_b, o_s, sf_b, sf_s, sf_g, line,
    D: tl.constexpr, RESIDUAL: tl.constexpr, CAST: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr,
    PACKED: tl.constexpr, ORIGIN: tl.constexpr, BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    live = row < rows
    mask = live & (column < D)
    batch, token = (row // tokens).to(tl.int64), row % tokens
    at = token.to(tl.int64)
    value = tl.load(x + batch * x_b + at * x_s + column, mask=mask, other=0.0)
    if RESIDUAL:
        added = tl.load(residual + batch * r_b + at * r_s + column, mask=mask, other=0.0)
        value = _rounded(widen(value) + widen(added), value)
        tl.store(residual_out + batch * t_b + at * t_s + column, value, mask=mask)
    v = widen(value)
    weight = widen(tl.load(w + column, mask=column < D, other=0.0)) * out_scale
    out = v * reciprocal_root(v, D, eps, ROWS, WIDTH, LEVELS)[:, None] * weight
    to = y + batch * y_b + at * y_s + column
    if CAST:
        origin = _rounded(out, value)
        if ORIGIN:
            tl.store(y_origin + batch * o_b + at * o_s + column, origin, mask=mask)
        SF: tl.constexpr = "ue8m0" if PACKED else "fp32"
        SLOTS: tl.constexpr = WIDTH // GROUP
        codes, scales, numbers = quantize(widen(origin), "e4m3", GROUP, ROUND, SF, ROWS, WIDTH)
        tl.store(to, codes, mask=mask)
        _store_scales(scales, sf, batch * sf_b + at * sf_s, live, sf_g, PACKED, D // GROUP, SLOTS)
        if BLOCK_M:
            exponents = (numbers.to(tl.int32, bitcast=True) >> 23).to(tl.uint8)
            _store_shared(exponents, shared_sf, token, live, line, BLOCK_M, D // GROUP, SLOTS)
    else:
        if y.dtype.element_ty == tl.float32:
            tl.store(to, out, mask=mask)
        else:
            tl.store(to, narrow(out), mask=mask)


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
    rows, columns, warps = tile(d)
    constants = {
        "D": d, "RESIDUAL": has_residual, "CAST": do_fp8_cast, "GROUP": num_per_channels or columns,
        "ROUND": round_sf, "PACKED": use_packed_ue8m0, "ORIGIN": return_origin_out, "BLOCK_M": shared_sf_block_m,
        "ROWS": rows, "WIDTH": columns, "LEVELS": levels(columns), "num_warps": warps, "enable_fp_fusion": False,
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
        strides = [step for one in (x, y, residual, residual_out, y_origin, sf) for step in one.stride()[:2]]
        launch(
            _norm, (cdiv(total, rows),), x, y, w, residual, residual_out, sf, shared_sf, y_origin,
            total, x.shape[1], eps, out_scale, *strides, sf.stride(2), shared_sf.stride(1), **constants,
        )  # fmt: skip

    return run
