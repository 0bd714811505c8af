"""`fused_norm_rope_hadamard_cast_store_kvcache_tl` in Triton (kernel_spec A.13).

Each configuration is a kernel of its own: steps that are off cost nothing, and blocks and heads are divided by as
constants. The model has about eight of them: rotation of queries and back, of index queries with their cast, the SWA
ring's store and cast back, the stores of compressed and of index keys; the cases cover more.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import KVCacheFormat
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.index_query import rotate_and_cast
from deepinfer.ops.triton.quantize import narrow, quantize_and_back, rounded, widen
from deepinfer.ops.triton.rms import reciprocal_root, sum_of_squares
from deepinfer.ops.triton.rotary import hadamard, neox_partner, rotate_halves, rotate_neighbours
from deepinfer.ops.triton.rows import few, levels, locate, one_a_row, tile, tile_of_few
from deepinfer.ops.triton.store_kv_cache import as_bytes, store_row_values


@triton.jit
def _normed(value, root, weight, column):
    """Normed rows, rounded to bfloat16, as float32."""
    at = weight + column
    if value.shape[1] < 256:
        # A row of the weight alone would be spread over the threads otherwise than the rows, and move them to it.
        at = tl.broadcast_to(at, value.shape)
    return rounded(widen(value) * root * widen(tl.load(at)))


@triton.jit(do_not_specialize=["rows", "table_rows", "end", "norm_eps", "hadamard_scale"])
def _transform(
    x, weight, positions, cos, sin, out_bf16, out_quant, out_sf, cache_quant, cache_sf, slots,
    rows, table_rows, end, norm_eps, hadamard_scale,
    x_n, x_h, cos_stride, sin_stride, quant_block, sf_block,
    HEADS: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, OFFSET: tl.constexpr, NEOX: tl.constexpr,
    CONJUGATE: tl.constexpr, HADAMARD: tl.constexpr, FMT: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr,
    SF: tl.constexpr, BF16: tl.constexpr, QUANT: tl.constexpr, STORE: tl.constexpr, BLOCK: tl.constexpr,
    QUANT_TOKEN: tl.constexpr, SF_TOKEN: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    await_inputs()
    first = tl.program_id(0) * ROWS
    mine = tl.arange(0, ROWS)[:, None]
    row = first + mine
    column = tl.arange(0, WIDTH)[None, :]
    # Heads of one token: what is the token's, every thread has once and not for each of its rows, and none is missing.
    TOGETHER: tl.constexpr = HEADS % ROWS == 0
    if TOGETHER:
        live = tl.full((ROWS, 1), True, tl.int1)
        token = first // HEADS
        at = x + token.to(tl.int64) * x_n + (first % HEADS).to(tl.int64) * x_h + mine.to(tl.int64) * x_h
    else:
        live = row < rows
        token = row // HEADS
        at = x + token.to(tl.int64) * x_n + (row % HEADS).to(tl.int64) * x_h
    to = out_bf16 + first.to(tl.int64) * WIDTH + mine * WIDTH + column
    value = tl.load(at + column, mask=live, other=0.0)
    w = widen(value)
    # Where rows are turned to and stored is asked for before the norm: behind it, it would take its time again.
    if ROPE:
        if TOGETHER:
            # Of as many rows as the values: a row of the tables alone would be spread over the threads otherwise.
            position = tl.load(positions + token).to(tl.int64) + mine * 0
        else:
            position = one_a_row(positions, first, rows, HEADS, ROWS).to(tl.int64)
    if STORE:
        slot = one_a_row(slots, first, rows, 1, ROWS)
    if NORM:
        root = reciprocal_root(sum_of_squares(w, ROWS, WIDTH, LEVELS), norm_eps, WIDTH)[:, None]
        w = _normed(value, root, weight, column)
    if BF16 == "norm":
        tl.store(to, narrow(w), mask=live)
    if ROPE:
        turned = (position >= 0) & (position < table_rows)
        cos_row, sin_row = cos + position * cos_stride, sin + position * sin_stride
        if NEOX:
            other = neox_partner(OFFSET, WIDTH)
            beside = tl.load(at + other, mask=live, other=0.0)
            partner = _normed(beside, root, weight, other) if NORM else widen(beside)
            w = rotate_halves(w, partner, cos_row, sin_row, turned, CONJUGATE, OFFSET, WIDTH)
        else:
            w = rotate_neighbours(w, cos_row, sin_row, turned, CONJUGATE, OFFSET, ROWS, WIDTH)
    if HADAMARD:
        w = rounded(hadamard(w, ROWS, WIDTH, LEVELS + 4) * hadamard_scale)
    if BF16 == "transform":
        tl.store(to, narrow(w), mask=live)
    if FMT != "":
        codes, scales, plain = quantize_and_back(w, FMT, GROUP, ROUND, SF, QUANT or STORE, ROWS, WIDTH)
        if QUANT:
            COUNT: tl.constexpr = codes.shape[1]
            store_row_values(codes, out_quant, live, row.to(tl.int64), row * 0, COUNT, 0, COUNT, 8 * COUNT // WIDTH)
            store_row_values(scales, out_sf, live, row.to(tl.int64), row * 0, WIDTH // GROUP, 0, WIDTH // GROUP, 1)
        if BF16 == "cast_back":
            tl.store(to, narrow(plain), mask=live)
        if STORE:
            inside, block, place = locate(slot, live, end, BLOCK)
            BYTES: tl.constexpr = codes.shape[1]
            store_row_values(
                codes, cache_quant, inside, block, place, quant_block, QUANT_TOKEN, BYTES, 8 * BYTES // WIDTH
            )
            store_row_values(scales, cache_sf, inside, block, place, sf_block, SF_TOKEN, WIDTH // GROUP, 1)


@functools.cache
def fused_norm_rope_hadamard_cast_store_kvcache_tl(
    num_heads: int,
    head_dim: int,
    *,
    do_norm: bool = False,
    norm_eps: float = 1e-6,
    do_rope: bool = False,
    rotary_dim: int = 0,
    rope_offset: int = 0,
    positions_dtype: str = "int32",
    is_neox: bool = False,
    conjugate: bool = False,
    do_hadamard: bool = False,
    hadamard_scale: float = 1.0,
    cast_fmt: str = "",
    num_per_channels: int = 0,
    round_sf: bool = False,
    sf_format: str = "",
    return_bf16: bool = False,
    bf16_stage: str = "transform",
    return_quant: bool = False,
    cache_layout: KVCacheFormat | None = None,
    block_size: int = 0,
    small_batch: bool = False,
) -> Kernel:
    """Norm, rotation, Hadamard transform, cast and store of rows, each of them optional.

    small_batch is upstream's tuning and changes nothing.
    """
    constants = {
        "HEADS": num_heads, "NORM": do_norm, "ROPE": do_rope, "OFFSET": rope_offset if do_rope else 0,
        "NEOX": do_rope and is_neox, "CONJUGATE": do_rope and conjugate, "HADAMARD": do_hadamard, "FMT": cast_fmt,
        "GROUP": num_per_channels if cast_fmt else tile(head_dim)[1], "ROUND": round_sf,
        "SF": sf_format if cast_fmt else "",
        "BF16": bf16_stage if return_bf16 else "", "QUANT": return_quant, "STORE": cache_layout is not None,
        "BLOCK": block_size, "enable_fp_fusion": False, "launch_pdl": True,
    }  # fmt: skip

    in_pairs = (
        do_rope and not (do_norm or is_neox or do_hadamard or return_bf16 or cache_layout)
        and (cast_fmt, round_sf, sf_format, return_quant) == ("e2m1", True, "ue8m0", True)
        and head_dim == tile(head_dim)[1] == 2 * rope_offset and num_heads % tile(head_dim)[0] == 0
        and num_per_channels >= 8
    )  # fmt: skip

    def run(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        positions: torch.Tensor | None,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        out_bf16: torch.Tensor | None,
        out_quant: torch.Tensor | None,
        out_sf: torch.Tensor | None,
        cache_quant: torch.Tensor | None,
        cache_sf: torch.Tensor | None,
        slot_mapping: torch.Tensor | None,
    ) -> None:
        given = (weight, positions, cos, sin, out_bf16, out_quant, out_sf, cache_quant, cache_sf, slot_mapping)
        tensors = [x if one is None else as_bytes(one) for one in given]
        tables, cos_step, sin_step = (0, 0, 0)
        if cos is not None and sin is not None:
            tables, cos_step, sin_step = min(cos.shape[0], sin.shape[0]), cos.stride(0), sin.stride(0)
        blocks, quant_block, quant_token, sf_block, sf_token = (0, 0, 0, 0, 0)
        if cache_quant is not None and cache_sf is not None:
            blocks = cache_quant.shape[0]
            (quant_block, quant_token), (sf_block, sf_token) = cache_quant.stride()[:2], cache_sf.stride()[:2]
        total = x.shape[0] * num_heads
        rows, columns, warps = tile_of_few(head_dim) if num_heads == 1 and few(total, x.device) else tile(head_dim)
        if in_pairs and x.data_ptr() % 4 == 0 and x.stride(0) % 2 == 0 and x.stride(1) % 2 == 0:
            values, scales = tensors[5:7]
            launch(
                rotate_and_cast, (total // rows,), x.view(torch.int32), *tensors[1:4], values, scales,
                tables, x.stride(0) // 2, x.stride(1) // 2, cos_step, sin_step,
                HEADS=num_heads, CONJUGATE=conjugate, GROUP=num_per_channels, ROWS=rows, N=head_dim // 4,
                num_warps=warps, enable_fp_fusion=False, launch_pdl=True,
            )  # fmt: skip
            return
        launch(
            _transform, (cdiv(total, rows),), x, *tensors,
            total, tables, blocks * block_size, norm_eps, hadamard_scale,
            x.stride(0), x.stride(1), cos_step, sin_step, quant_block, sf_block,
            QUANT_TOKEN=quant_token, SF_TOKEN=sf_token, ROWS=rows, WIDTH=columns, LEVELS=levels(columns),
            num_warps=warps, **constants,
        )  # fmt: skip

    return run
