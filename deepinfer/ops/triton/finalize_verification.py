"""`finalize_verification_tl` in Triton (kernel_spec A.3, #35).

One launch without atomics: the first programs each own one counter and go through all rows in a fixed order, so no
counter has to be cleared before another program adds to it, and the sum of errors has the same bits each time. The
other programs have a row each.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import launch

_FEW_ROWS, _MANY_ROWS = 256, 2048
_FEW_TOKENS, _MANY_TOKENS = 64, 1024
Optional = torch.Tensor | None


@triton.jit
def _steps(rows, row_to_req, ftp, q, r):
    """The step of each row in its request; -1 for a row of none."""
    request = tl.load(row_to_req + rows, mask=rows < q, other=-1)
    owned = (request >= 0) & (request < r)
    start = tl.load(ftp + request, mask=owned, other=-1)
    return tl.where(owned & (start >= 0) & (start <= rows), rows - start, -1)


@triton.jit
def _count(
    own, accept, is_verify, ftp, row_to_req, generated, verified, q, r, STEPS: tl.constexpr, CHUNK: tl.constexpr
):
    """Counters of one step: drafts accepted there, and drafts examined there (the last counter: there or later)."""
    accepted = tl.zeros((CHUNK,), tl.int32)
    examined = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, q, CHUNK):
        rows = first + tl.arange(0, CHUNK)
        step = _steps(rows, row_to_req, ftp, q, r)
        hit = tl.load(accept + rows, mask=rows < q, other=0) != 0
        accepted += (hit & (step == own)).to(tl.int32)
        hit = tl.load(is_verify + rows, mask=rows < q, other=0) != 0
        examined += (hit & (step >= 0) & (tl.minimum(step, STEPS - 1) == own)).to(tl.int32)
    tl.store(generated + own, tl.sum(accepted, axis=0))
    tl.store(verified + own, tl.sum(examined, axis=0))


@triton.jit
def _sum_errors(
    accept_probs, confidence, read_rows, is_verify, ftp, row_to_req, error, q, r, pc,
    HAS_CONFIDENCE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sum of |estimate - confidence| over the examined drafts."""
    total = tl.zeros((CHUNK,), tl.float32)
    if HAS_CONFIDENCE:
        for first in range(0, q, CHUNK):
            rows = first + tl.arange(0, CHUNK)
            examined = tl.load(is_verify + rows, mask=rows < q, other=0) != 0
            examined = examined & (_steps(rows, row_to_req, ftp, q, r) >= 0)
            source = tl.load(read_rows + rows, mask=examined, other=-1)
            examined = examined & (source >= 0) & (source < pc)
            expected = tl.load(confidence + source, mask=examined, other=0.0)
            total += tl.abs(tl.load(accept_probs + rows, mask=examined, other=0.0) - expected)
    tl.store(error, tl.sum(total, axis=0))


@triton.jit
def _emit(row, request, tokens, logprobs, ssp, sampled_tokens, sampled_logprobs, sampled_ssp, HAS_SSP: tl.constexpr):
    """The last token of a request."""
    tl.store(sampled_tokens + request, tl.load(tokens + row))
    tl.store(sampled_logprobs + request, tl.load(logprobs + row))
    if HAS_SSP:
        tl.store(sampled_ssp + request, tl.load(ssp + row))


@triton.jit
def _stopped(start, row, request, tokens, stops, emitted, STOPS: tl.constexpr, BLOCK: tl.constexpr):
    """Whether one of the request's stop tokens is among its rows up to this one."""
    found = tl.zeros((BLOCK,), tl.int32)
    for first in range(start, row + 1, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        token = tl.load(tokens + rows, mask=rows <= row, other=-1)
        for index in tl.static_range(STOPS):
            stop = tl.load(stops + request * STOPS + index)
            found += ((rows <= row) & (token == stop) & (stop != -1)).to(tl.int32)
    tl.store(emitted + request, tl.max(found, axis=0) != 0)


@triton.jit
def _copy_top(row, request, accepted, final, source, verified, sampled, k, stride, BLOCK: tl.constexpr):
    """A row of top values: to the verified ones (zeros if it was not accepted), and to its request's if it is last."""
    for first in range(0, k, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(source + row.to(tl.int64) * stride + column, mask=(column < k) & (accepted | final), other=0)
        kept = tl.where(accepted, value, tl.zeros_like(value))
        tl.store(verified + row.to(tl.int64) * k + column, kept, mask=column < k)
        tl.store(sampled + request.to(tl.int64) * k + column, value, mask=(column < k) & final)


@triton.jit(do_not_specialize=["q", "r", "pc", "k", "logprob_stride", "id_stride"])
def _finalize_verification(
    accept, final_in, tokens, logprobs, ssp, top_logprobs, top_ids, ftp, row_to_req, is_verify, accept_probs,
    confidence, read_rows, stops, last_offset, generated, verified, error, emitted, sampled_tokens, sampled_logprobs,
    sampled_ssp, sampled_top_logprobs, sampled_top_ids, verified_tokens, verified_logprobs, verified_ssp,
    verified_top_logprobs, verified_top_ids, q, r, pc, k, logprob_stride, id_stride,
    HAS_SSP: tl.constexpr, HAS_CONFIDENCE: tl.constexpr, STEPS: tl.constexpr, STOPS: tl.constexpr,
    CHUNK: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < STEPS:
        _count(program, accept, is_verify, ftp, row_to_req, generated, verified, q, r, STEPS, CHUNK)
    elif program == STEPS:
        _sum_errors(
            accept_probs, confidence, read_rows, is_verify, ftp, row_to_req, error, q, r, pc, HAS_CONFIDENCE, CHUNK
        )
    else:
        row = program - STEPS - 1
        accepted = tl.load(accept + row) != 0
        tl.store(verified_tokens + row, tl.where(accepted, tl.load(tokens + row), -1))
        tl.store(verified_logprobs + row, tl.where(accepted, tl.load(logprobs + row), 0.0))
        if HAS_SSP:
            tl.store(verified_ssp + row, tl.where(accepted, tl.load(ssp + row), 0.0))
        step = _steps(row, row_to_req, ftp, q, r)
        request = tl.load(row_to_req + row)
        final = (tl.load(final_in + row) != 0) & (step >= 0)
        if final:
            tl.store(last_offset + request, step)
            _emit(row, request, tokens, logprobs, ssp, sampled_tokens, sampled_logprobs, sampled_ssp, HAS_SSP)
            if HAS_CONFIDENCE:
                _stopped(row - step, row, request, tokens, stops, emitted, STOPS, 32)
        if TOP > 0:
            _copy_top(
                row, request, accepted, final, top_logprobs, verified_top_logprobs, sampled_top_logprobs, k,
                logprob_stride, TOP,
            )  # fmt: skip
            _copy_top(row, request, accepted, final, top_ids, verified_top_ids, sampled_top_ids, k, id_stride, TOP)


@functools.cache
def finalize_verification_tl(
    has_sum_smaller_probs: bool, has_confidence: bool, num_steps: int, num_stop_tokens: int
) -> Kernel:
    """What a step emits, by row (verified drafts) and by request (the last token), with counters."""

    def run(
        effective_accept: torch.Tensor,
        is_final_input: torch.Tensor,
        effective_token_ids: torch.Tensor,
        token_logprobs: torch.Tensor,
        sum_smaller_probs: Optional,
        top_logprobs: Optional,
        top_token_ids: Optional,
        ftp: torch.Tensor,
        seqlen_q: torch.Tensor,
        row_to_req: torch.Tensor,
        is_verify: torch.Tensor,
        accept_probs: Optional,
        confidence_pool: Optional,
        mtp_info_read_rows: Optional,
        stop_token_ids: Optional,
        *outputs: Optional,
    ) -> None:
        q, r = row_to_req.shape[0], ftp.shape[0]
        k, strides = 0, (0, 0)
        if top_logprobs is not None and top_token_ids is not None:
            k, strides = top_logprobs.shape[1], (top_logprobs.stride(0), top_token_ids.stride(0))
        pc = 0 if confidence_pool is None else confidence_pool.shape[0]
        launch(
            _finalize_verification,
            (num_steps + 1 + q,),
            *(effective_accept, is_final_input, effective_token_ids, token_logprobs, sum_smaller_probs, top_logprobs),
            *(top_token_ids, ftp, row_to_req, is_verify, accept_probs, confidence_pool, mtp_info_read_rows),
            *(stop_token_ids, *outputs, q, r, pc, k, *strides),
            HAS_SSP=has_sum_smaller_probs,
            HAS_CONFIDENCE=has_confidence,
            STEPS=num_steps,
            STOPS=num_stop_tokens,
            CHUNK=_FEW_ROWS if q <= _FEW_ROWS else _MANY_ROWS,
            TOP=0 if k == 0 else _FEW_TOKENS if k <= _FEW_TOKENS else _MANY_TOKENS,
        )

    return run
