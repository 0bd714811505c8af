"""`apply_token_bitmask_by_step_inplace_tl` in Triton (kernel_spec A.4)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2

_WORDS = 128


@triton.jit(do_not_specialize=["stride", "mask_stride", "mask_rows", "rows", "requests", "step"])
def _apply_bitmask(
    logits,
    stride,
    rows,
    bitmask,
    mask_stride,
    mask_rows,
    indices,
    ftp,
    requests,
    step,
    width,
    HAS_FTP: tl.constexpr,
    WORDS: tl.constexpr,
):
    request = tl.load(indices + tl.program_id(0)).to(tl.int64)
    row = request
    end = rows.to(tl.int64)
    known = (request >= 0) & (request < mask_rows)
    if HAS_FTP:
        known = known & (request < requests)
        row = tl.load(ftp + request, mask=known, other=0).to(tl.int64) + step
        follows = known & (request + 1 < requests)
        end = tl.minimum(end, tl.load(ftp + request + 1, mask=follows, other=2147483647).to(tl.int64))
    if known & (row >= 0) & (row < end):
        place = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
        # A word that lies beyond the vocabulary allows everything.
        words = tl.load(bitmask + request * mask_stride + place, mask=place * 32 < width, other=-1)
        bit = tl.arange(0, 32)
        columns = place[:, None] * 32 + bit[None, :]
        barred = ((words[:, None] >> bit[None, :]) & 1) == 0
        nothing = tl.full((WORDS, 32), float("-inf"), dtype=tl.float32)
        tl.store(logits + row * stride + columns, nothing, mask=barred & (columns < width))


@functools.cache
def apply_token_bitmask_by_step_inplace_tl(vocab_size: int, has_ftp: bool) -> Kernel:
    """-inf for the tokens whose bit is 0, in row ftp[r] + step (or r) of each request r of `indices`."""
    words = min(next_power_of_2(cdiv(vocab_size, 32)), _WORDS)

    def run(
        logits: torch.Tensor, bitmask: torch.Tensor, indices: torch.Tensor, ftp: torch.Tensor | None, step: int
    ) -> None:
        launch(
            _apply_bitmask,
            (indices.shape[0], cdiv(cdiv(vocab_size, 32), words)),
            logits,
            logits.stride(0),
            logits.shape[0],
            bitmask,
            bitmask.stride(0),
            bitmask.shape[0],
            indices,
            indices if ftp is None else ftp,
            0 if ftp is None else ftp.shape[0],
            step,
            vocab_size,
            HAS_FTP=has_ftp,
            WORDS=words,
            num_warps=4,
        )

    return run
