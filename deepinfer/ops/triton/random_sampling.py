"""`random_sampling_tl` in Triton (kernel_spec A.2, B.2)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import launch, next_power_of_2
from deepinfer.ops.triton import philox
from deepinfer.ops.triton.inverse_cdf import below, depth_of, fixed_point, lane_of, lanes_of, place_of

_TILE = 8192


@triton.jit(do_not_specialize=["stride8", "seed_stride", "position_stride"])
def _random_sampling(
    probs,
    stride8,
    seeds,
    seed_stride,
    positions,
    position_stride,
    out,
    width,
    CASE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = probs + row * (stride8.to(tl.int64) * 8)  # a multiple of 8: wide loads
    columns = tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    masses = tl.zeros((LANES,), dtype=tl.int64)
    wrong = tl.zeros((LANES,), dtype=tl.int32)
    for start in range(0, width, LANES * ROWS):
        p = tl.load(source + start + columns, mask=start + columns < width, other=0.0)
        usable = p < 2.0
        wrong = wrong | tl.max((~usable).to(tl.int32), 0)
        masses += tl.sum(fixed_point(tl.where(usable, p, 0.0)), 0)
    total = tl.sum(masses, 0)
    token = tl.full((), -1, dtype=tl.int32)
    if (tl.max(wrong, 0) == 0) & (total > 0) & (total <= 4294967295):
        seed = tl.load(seeds + row * seed_stride)
        position = tl.load(positions + row * position_stride)
        rho = below(total, seed, philox.subsequence_of(position, CASE))
        lane, rest = lane_of(masses, rho)
        picked = lane + tl.arange(0, DEPTH) * LANES
        column = fixed_point(tl.load(source + picked, mask=picked < width, other=0.0))
        token = lane + place_of(column, rest) * LANES
    tl.store(out + row, token)


@functools.cache
def random_sampling_tl(vocab_size: int, is_nextn_predict: bool) -> Kernel:
    """A token of each row of probabilities. is_nextn_predict: from the stream of draws after a rejection."""
    lanes = lanes_of(vocab_size)
    rows = max(min(_TILE, next_power_of_2(vocab_size)) // lanes, 1)

    def run(probs: torch.Tensor, seq_seeds: torch.Tensor, sample_positions: torch.Tensor, out: torch.Tensor) -> None:
        launch(
            _random_sampling,
            (probs.shape[0],),
            probs,
            probs.stride(0) // 8,
            seq_seeds.view(torch.int64),
            seq_seeds.stride(0),
            sample_positions,
            sample_positions.stride(0),
            out,
            vocab_size,
            CASE=int(is_nextn_predict),
            LANES=lanes,
            ROWS=rows,
            DEPTH=depth_of(vocab_size),
            num_warps=8 if lanes >= 2048 else 4,
        )

    return run
