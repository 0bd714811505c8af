"""`gather_engram_tokens_zos_tl` in Triton (kernel_spec A.6)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch
from deepinfer.ops.triton.gather_input_ids_zos import query_rows, query_tile


@triton.jit(do_not_specialize=["r", "rp", "vc", "q"])
def _gather_engram_tokens_zos(
    window, fresh, sampled, predict, accepted, remap, table, seqlens_q, cu_seqlens_q, out, r, rp, vc, q,
    WIDTH: tl.constexpr, NGRAM: tl.constexpr, PAD: tl.constexpr, SENTINEL: tl.constexpr,
    SEQUENCES: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    HISTORY: tl.constexpr = WIDTH - 1 + NGRAM - 1
    sequence, step, rows, live = query_rows(seqlens_q, cu_seqlens_q, r, q, SEQUENCES, STEPS, WIDTH)
    before = tl.load(remap + sequence, mask=sequence < r, other=-1)
    known = (before >= 0) & (before < rp)
    kept = tl.load(accepted + before, mask=known, other=0)
    end = HISTORY - tl.where(known, WIDTH - 1 - kept, WIDTH - 1)[:, None]
    sequence, before, known = sequence[:, None], before[:, None], known[:, None]
    ended = step + before * 0 < 0
    for back in tl.static_range(NGRAM):
        current = step - back
        old = live & known & (current >= 0)
        raw = tl.load(sampled + before + current * 0, mask=old & (current == 0), other=0)
        raw += tl.load(predict + before * (WIDTH - 1) + current - 1, mask=old & (current > 0), other=0)
        token = tl.load(table + raw, mask=old & (raw >= 0) & (raw < vc), other=SENTINEL)
        new = live & (known == 0) & (current >= 0)
        token = tl.where(new, tl.load(fresh + sequence * WIDTH + current, mask=new, other=SENTINEL), token)
        column = end + current
        past = live & (current < 0) & (column >= 0) & (column < HISTORY)
        token = tl.where(past, tl.load(window + sequence * HISTORY + column, mask=past, other=SENTINEL), token)
        ended = ended | (token == SENTINEL)
        tl.store(out + rows.to(tl.int64) * NGRAM + back, tl.where(ended, PAD, token), mask=live)


@functools.cache
def gather_engram_tokens_zos_tl(
    max_seqlen_q: int, max_ngram_size: int, engram_compressed_pad_token: int, image_sentinel: int
) -> Kernel:
    """out[row] = the row's compressed id and those before it, newest first, up to the first image token."""
    steps, sequences = query_tile(max_seqlen_q)

    def run(
        window: torch.Tensor,
        fresh: torch.Tensor,
        sampled: torch.Tensor,
        predict: torch.Tensor,
        accepted: torch.Tensor,
        remap: torch.Tensor,
        table: torch.Tensor,
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        r = remap.shape[0]
        launch(
            _gather_engram_tokens_zos,
            (cdiv(r, sequences),),
            *(window, fresh, sampled, predict, accepted, remap, table, seqlens_q, cu_seqlens_q, out),
            *(r, sampled.shape[0], table.shape[0], out.shape[0]),
            WIDTH=max_seqlen_q,
            NGRAM=max_ngram_size,
            PAD=engram_compressed_pad_token,
            SENTINEL=image_sentinel,
            SEQUENCES=sequences,
            STEPS=steps,
        )

    return run
