"""`get_accept_result_tl` in Triton (kernel_spec A.3, #34)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch

_ROWS, _STEPS = 16, 16


@triton.jit
def _accepted(rows, mask, raw_accept, golden, draft_tokens, read_rows, p, HAS_GOLDEN: tl.constexpr):
    """Whether the sampler, or the given token where there is one, accepts the draft of these rows."""
    accepted = tl.load(raw_accept + rows, mask=mask, other=0) != 0
    if HAS_GOLDEN:
        given = tl.load(golden + rows, mask=mask, other=-1)
        source = tl.load(read_rows + rows, mask=mask & (given != -1), other=-1)
        draft = tl.load(draft_tokens + source, mask=(source >= 0) & (source < p), other=-1)
        accepted = tl.where(given != -1, given == draft, accepted)
    return accepted


@triton.jit(do_not_specialize=["q", "r", "p"])
def _get_accept_result(
    raw_accept, golden, draft_tokens, read_rows, candidates, is_verify, ftp, row_to_req, tokens_out, accept_out,
    final_out, q, r, p, HAS_GOLDEN: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Every row looks at the rows of its request before it: at most some tens, all loaded at once."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < q
    request = tl.load(row_to_req + row, mask=live, other=-1)
    owned = (request >= 0) & (request < r)
    start = tl.load(ftp + request, mask=owned, other=-1)
    owned = owned & (start >= 0) & (start <= row)
    length = tl.where(owned, row - start, 0)
    failed = tl.zeros((ROWS, STEPS), tl.int32)
    for first in range(0, tl.max(length, axis=0), STEPS):
        step = first + tl.arange(0, STEPS)[None, :]
        mask = step < length[:, None]
        earlier = start[:, None] + step
        accepted = _accepted(earlier, mask, raw_accept, golden, draft_tokens, read_rows, p, HAS_GOLDEN)
        holds = accepted & (tl.load(is_verify + earlier, mask=mask, other=0) != 0)
        failed += (mask & (holds == 0)).to(tl.int32)
    alive = owned & (tl.max(failed, axis=1) == 0)
    holds = _accepted(row, live, raw_accept, golden, draft_tokens, read_rows, p, HAS_GOLDEN)
    holds = holds & (tl.load(is_verify + row, mask=live, other=0) != 0)
    token = tl.load(candidates + row, mask=live, other=-1)
    if HAS_GOLDEN:
        given = tl.load(golden + row, mask=live, other=-1)
        token = tl.where(given != -1, given, token)
    tl.store(tokens_out + row, token, mask=live)
    tl.store(accept_out + row, alive & holds, mask=live)
    tl.store(final_out + row, alive & (holds == 0), mask=live)


@functools.cache
def get_accept_result_tl(has_golden: bool) -> Kernel:
    """Which drafts hold, and which row ends a request: its first one that does not, or the one without a draft."""

    def run(*arguments: torch.Tensor) -> None:
        draft_token_ids_pool, ftp, row_to_req = arguments[2], arguments[6], arguments[7]
        q = row_to_req.shape[0]
        launch(
            _get_accept_result,
            (cdiv(q, _ROWS),),
            *(*arguments, q, ftp.shape[0], draft_token_ids_pool.shape[0]),
            HAS_GOLDEN=has_golden,
            ROWS=_ROWS,
            STEPS=_STEPS,
        )

    return run
