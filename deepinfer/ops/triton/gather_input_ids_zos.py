"""`gather_input_ids_zos_tl` in Triton (kernel_spec A.6)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2

_TILE = 128


@triton.jit
def query_rows(seqlens_q, cu_seqlens_q, r, q, SEQUENCES: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr):
    """The tile of this program: sequences [SEQUENCES], steps [1, STEPS], query rows [SEQUENCES, STEPS], and whether
    there is such a row. Steps beyond WIDTH are none."""
    sequence = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    length = tl.load(seqlens_q + sequence, mask=sequence < r, other=0)
    base = tl.load(cu_seqlens_q + sequence - 1, mask=(sequence > 0) & (sequence < r), other=0)
    step = tl.arange(0, STEPS)[None, :]
    rows = base[:, None] + step
    live = (step < length[:, None]) & (step < WIDTH) & (rows < q)
    return sequence, step, rows, live


@triton.jit(do_not_specialize=["r", "rp", "q"])
def _gather_input_ids_zos(
    fresh, sampled, predict, remap, seqlens_q, cu_seqlens_q, out, r, rp, q,
    WIDTH: tl.constexpr, SEQUENCES: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    sequence, step, rows, live = query_rows(seqlens_q, cu_seqlens_q, r, q, SEQUENCES, STEPS, WIDTH)
    before = tl.load(remap + sequence, mask=sequence < r, other=-1)[:, None]
    known = (before >= 0) & (before < rp)
    token = tl.load(fresh + sequence[:, None] * WIDTH + step, mask=live & (known == 0), other=0)
    token += tl.load(sampled + before + step * 0, mask=live & known & (step == 0), other=0)
    token += tl.load(predict + before * (WIDTH - 1) + step - 1, mask=live & known & (step > 0), other=0)
    tl.store(out + rows, token, mask=live)


@functools.cache
def gather_input_ids_zos_tl(max_seqlen_q: int) -> Kernel:
    """out[base_i + j] = (sampled, predicted...)[j] of the row before, or fresh[i, j]."""
    steps, sequences = query_tile(max_seqlen_q)

    def run(
        fresh: torch.Tensor,
        sampled: torch.Tensor,
        predict: torch.Tensor,
        remap: torch.Tensor,
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        r = remap.shape[0]
        launch(
            _gather_input_ids_zos,
            (cdiv(r, sequences),),
            *(fresh, sampled, predict, remap, seqlens_q, cu_seqlens_q, out, r, sampled.shape[0], out.shape[0]),
            WIDTH=max_seqlen_q,
            SEQUENCES=sequences,
            STEPS=steps,
        )

    return run


def query_tile(max_seqlen_q: int) -> tuple[int, int]:
    """Steps and sequences of a program's tile: one value per thread."""
    steps = next_power_of_2(max_seqlen_q)
    return steps, max(_TILE // steps, 1)
