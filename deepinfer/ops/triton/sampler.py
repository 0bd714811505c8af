"""The factories of `sampler` in Triton (kernel_spec A.3); the larger ones have files of their own."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.finalize_verification import finalize_verification_tl
from deepinfer.ops.triton.get_accept_result import get_accept_result_tl
from deepinfer.ops.triton.remap_draft_topk import remap_draft_topk_tl

__all__ = [
    "expand_sampling_params_tl",
    "finalize_verification_tl",
    "get_accept_result_tl",
    "map_lookup_tl",
    "prepare_verification_metadata_tl",
    "remap_draft_topk_tl",
]

_ROWS, _REQUESTS = 32, 64
_BLOCK = 128


@triton.jit(do_not_specialize=["q", "r"])
def _prepare_verification_metadata(
    ftp, seqlen_q, row_to_req, local_step, is_verify, q, r, ROWS: tl.constexpr, REQUESTS: tl.constexpr
):
    """Every row looks for its request: rows of none are written too, and no request can write outside."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    owner = tl.full((ROWS, REQUESTS), -1, tl.int32)
    for first in range(0, r, REQUESTS):
        request = first + tl.arange(0, REQUESTS)
        start = tl.load(ftp + request, mask=request < r, other=0)[None, :]
        length = tl.load(seqlen_q + request, mask=request < r, other=0)[None, :]
        step = row[:, None] - start
        owner = tl.where((step >= 0) & (step < length), request[None, :], owner)
    request = tl.max(owner, axis=1)
    owned = request >= 0
    step = tl.where(owned, row - tl.load(ftp + request, mask=owned, other=0), 0)
    length = tl.load(seqlen_q + request, mask=owned, other=0)
    tl.store(row_to_req + row, request, mask=row < q)
    tl.store(local_step + row, step, mask=row < q)
    tl.store(is_verify + row, step + 1 < length, mask=row < q)


@functools.cache
def prepare_verification_metadata_tl(num_steps: int) -> Kernel:
    """Request, step, and whether there is a draft to verify, of each query row; -1, 0, False for a row of none."""

    def run(
        ftp: torch.Tensor,
        seqlen_q: torch.Tensor,
        row_to_req: torch.Tensor,
        local_step: torch.Tensor,
        is_verify: torch.Tensor,
    ) -> None:
        q = row_to_req.shape[0]
        launch(
            _prepare_verification_metadata,
            (cdiv(q, _ROWS),),
            *(ftp, seqlen_q, row_to_req, local_step, is_verify, q, ftp.shape[0]),
            ROWS=_ROWS,
            REQUESTS=_REQUESTS,
        )

    return run


@triton.jit(do_not_specialize=["q", "r"])
def _expand_sampling_params(
    temperatures, top_ps, top_ks, positions, seeds, row_to_req, local_step,
    temperatures_out, top_ps_out, top_ks_out, positions_out, seeds_out, q, r, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of no request gets a plain draw's parameters: temperature 1, no filter, position and seed 0."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < q
    request = tl.load(row_to_req + row, mask=live, other=-1)
    owned = (request >= 0) & (request < r)
    step = tl.load(local_step + row, mask=owned, other=0)
    tl.store(temperatures_out + row, tl.load(temperatures + request, mask=owned, other=1.0), mask=live)
    tl.store(top_ps_out + row, tl.load(top_ps + request, mask=owned, other=1.0), mask=live)
    tl.store(top_ks_out + row, tl.load(top_ks + request, mask=owned, other=-1), mask=live)
    position = tl.load(positions + request, mask=owned, other=0)
    tl.store(positions_out + row, position + step * 10000019, mask=live)
    tl.store(seeds_out + row, tl.load(seeds + request, mask=owned, other=0), mask=live)


@functools.cache
def expand_sampling_params_tl() -> Kernel:
    """Each row gets its request's parameters; its position is moved on by its step."""

    def run(*arguments: torch.Tensor) -> None:
        signed = [one.view(torch.int64) if one.dtype == torch.uint64 else one for one in arguments]
        q, r = arguments[5].shape[0], arguments[0].shape[0]
        launch(_expand_sampling_params, (cdiv(q, _BLOCK),), *signed, q, r, BLOCK=_BLOCK)

    return run


@triton.jit(do_not_specialize=["q", "value_stride", "query_stride", "out_stride"])
def _look_up_by_index(
    value, query, out, q, value_stride, query_stride, out_stride, MISSING: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    column = tl.load(query + row * query_stride, mask=row < q, other=-1)
    inside = (column >= 0) & (column < WIDTH)
    tl.store(out + row * out_stride, tl.load(value + row * value_stride + column, mask=inside, other=MISSING), row < q)


@triton.jit(do_not_specialize=["value_stride", "query_stride", "out_stride"])
def _look_up_by_key(
    key, value, query, out, key_stride, value_stride, query_stride, out_stride, MISSING: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wanted = tl.load(query + row * query_stride)
    found = tl.full((BLOCK,), -1, tl.int32)
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        keys = tl.load(key + row * key_stride + column, mask=column < WIDTH, other=0)
        found = tl.where((keys == wanted) & (column < WIDTH), column, found)
    column = tl.max(found, axis=0)
    tl.store(out + row * out_stride, tl.load(value + row * value_stride + column, mask=column >= 0, other=MISSING))


@functools.cache
def map_lookup_tl(force_topk: int, mode: str, value_dtype: torch.dtype) -> Kernel:
    """out = the row's value at the column `query`, or at the (last) column whose key is `query`; else -inf or -1."""
    missing = float("-inf") if value_dtype.is_floating_point else -1
    block = min(next_power_of_2(force_topk), 2048)

    def run(key: torch.Tensor | None, value: torch.Tensor, query: torch.Tensor, out: torch.Tensor) -> None:
        q = query.shape[0]
        strides = (value.stride(0), query.stride(0), out.stride(0))
        if key is None:
            constants = {"MISSING": missing, "WIDTH": force_topk, "BLOCK": _BLOCK}
            launch(_look_up_by_index, (cdiv(q, _BLOCK),), value, query, out, q, *strides, **constants)
        else:
            constants = {"MISSING": missing, "WIDTH": force_topk, "BLOCK": block}
            launch(_look_up_by_key, (q,), key, value, query, out, key.stride(0), *strides, **constants)

    return run
