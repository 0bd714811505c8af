"""`detect_outlier_and_abort_tl` in Triton (kernel_spec A.19)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, multiprocessors

BLOCK = 1024
WARPS = 1
"""Every thread of a program prints what it found: a warp of them is enough."""
PROGRAMS = 32
"""Of a multiprocessor."""


@triton.jit(do_not_specialize=["identity", "numel"])
def _detect(data, identity, max_abs, numel, per_program, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * per_program
    end = tl.minimum(begin + per_program, numel)
    lane = tl.arange(0, BLOCK)
    for first in range(begin, end, BLOCK):
        offset = first + lane
        value = tl.load(data + offset, mask=offset < end, other=0.0).to(tl.float32)
        bad = (value != value) | (tl.abs(value) >= max_abs)
        where = tl.min(tl.where(bad, lane, BLOCK), axis=0)
        if where < BLOCK:
            shown = tl.sum(tl.where(lane == where, value, 0.0), axis=0)
            tl.device_print("outlier: id, value, offset:", identity.to(tl.int64), shown, first + where)
            tl.device_assert(where == BLOCK, "outlier")


@functools.cache
def detect_outlier_and_abort_tl(dtype: torch.dtype, max_abs: float = 1e11) -> Kernel:
    """Print id, value and offset and assert on the device at a NaN or |value| >= max_abs."""

    def run(data: torch.Tensor, id: int) -> None:
        numel = data.shape[0]
        programs = min(cdiv(numel, BLOCK), multiprocessors(data.device) * PROGRAMS)
        if programs == 0:
            return
        share = cdiv(cdiv(numel, programs), BLOCK) * BLOCK
        launch(
            _detect, (cdiv(numel, share),), data, id, max_abs, numel, share, BLOCK=BLOCK, num_warps=WARPS, debug=True
        )

    return run
