"""`sum_smaller_probs_tl` in Triton (kernel_spec A.4)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import launch, next_power_of_2

_TILE = 8192


@triton.jit(do_not_specialize=["stride8"])
def _sum_smaller_probs(logprobs, stride8, tokens, output, width, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    source = logprobs + row * (stride8.to(tl.int64) * 8)  # a multiple of 8: wide loads
    token = tl.load(tokens + row)
    inside = (token >= 0) & (token < width)
    own = tl.load(source + token, mask=inside, other=float("nan"))
    total = tl.zeros((TILE,), dtype=tl.float32)
    for start in range(0, width, TILE):
        columns = start + tl.arange(0, TILE)
        value = tl.load(source + columns, mask=(columns < width) & inside, other=float("inf"))
        counted = (value < own) | ((value == own) & (columns <= token) & (columns < width))
        total += tl.where(counted, tl.exp(value), 0.0)
    tl.store(output + row, tl.sum(total, 0))


@functools.cache
def sum_smaller_probs_tl(vocab_size: int) -> Kernel:
    """Sum of the probabilities up to the token's own, in the ascending order of (log-probability, index)."""
    tile = min(_TILE, next_power_of_2(vocab_size))

    def run(logprobs: torch.Tensor, sample_results: torch.Tensor, output: torch.Tensor) -> None:
        launch(
            _sum_smaller_probs,
            (logprobs.shape[0],),
            logprobs,
            logprobs.stride(0) // 8,
            sample_results,
            output,
            vocab_size,
            TILE=tile,
            num_warps=8 if tile > 2048 else 4,
        )

    return run
