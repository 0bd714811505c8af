"""`remap_draft_topk_tl` in Triton (kernel_spec A.3, #33)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import launch, multiprocessors, next_power_of_2

_PROGRAMS_PER_MULTIPROCESSOR = 2


@triton.jit(do_not_specialize=["q", "p"])
def _remap_draft_topk(
    draft_index, draft_logprobs, draft_tokens, target_index, read_rows, aligned, local_ids, identity, places,
    q, p, target_stride, aligned_stride, VOCABULARY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A join by a sparse set: `places` holds, for a vocabulary id, where the draft's row has it. It is never cleared
    nor filled beforehand: an entry counts only if the draft's row really has that id at that place."""
    own = places + tl.program_id(0).to(tl.int64) * VOCABULARY
    row = tl.program_id(0)
    while row < q:
        source = tl.load(read_rows + row)
        known = (source >= 0) & (source < p)
        ids = draft_index + source.to(tl.int64) * WIDTH
        for first in range(0, WIDTH, BLOCK):
            column = first + tl.arange(0, BLOCK)
            token = tl.load(ids + column, mask=known & (column < WIDTH), other=-1)
            tl.store(own + token, column.to(tl.int16), mask=(token >= 0) & (token < VOCABULARY))
        tl.debug_barrier()  # the places written by other threads of this program are read next
        draft = tl.load(draft_tokens + source, mask=known, other=-1)
        found = tl.full((BLOCK,), -1, tl.int32)
        for first in range(0, WIDTH, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < WIDTH
            token = tl.load(target_index + row.to(tl.int64) * target_stride + column, mask=inside, other=-1)
            found = tl.where((token == draft) & (token >= 0), column, found)
            place = tl.load(own + token, mask=known & (token >= 0) & (token < VOCABULARY), other=-1).to(tl.int32)
            there = (place >= 0) & (place < WIDTH)
            there = there & (tl.load(ids + place, mask=there, other=-1) == token)
            logprob = tl.load(draft_logprobs + source.to(tl.int64) * WIDTH + place, mask=there, other=float("-inf"))
            tl.store(aligned + row.to(tl.int64) * aligned_stride + column, logprob, mask=inside)
        tl.store(local_ids + row, tl.max(found, axis=0))
        tl.store(identity + row, row)
        tl.debug_barrier()  # nobody may write the next row's places while these are read
        row += tl.num_programs(0)


@functools.cache
def remap_draft_topk_tl(force_topk: int, vocab_size: int) -> Kernel:
    """The draft's log-probabilities at the target's token ids; -inf for ids that the draft's top-k lacks."""
    block = min(next_power_of_2(force_topk), 4096)

    def run(
        draft_topk_index: torch.Tensor,
        draft_topk_logprobs: torch.Tensor,
        draft_token_ids_pool: torch.Tensor,
        target_topk_index: torch.Tensor,
        read_rows: torch.Tensor,
        aligned_logprobs: torch.Tensor,
        draft_local_ids: torch.Tensor,
        identity_rows: torch.Tensor,
    ) -> None:
        device, q = read_rows.device, read_rows.shape[0]
        programs = min(q, _PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(device))
        places = torch.empty((programs, vocab_size), dtype=torch.int16, device=device)
        launch(
            _remap_draft_topk,
            (programs,),
            *(draft_topk_index, draft_topk_logprobs, draft_token_ids_pool, target_topk_index, read_rows),
            *(aligned_logprobs, draft_local_ids, identity_rows, places, q, draft_topk_index.shape[0]),
            *(target_topk_index.stride(0), aligned_logprobs.stride(0)),
            VOCABULARY=vocab_size,
            WIDTH=force_topk,
            BLOCK=block,
            num_warps=max(1, min(block // 256, 16)),
            num_stages=1,
        )

    return run
