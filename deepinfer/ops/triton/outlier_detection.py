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


@triton.jit
def _bad(value, max_abs):
    return (value != value) | (tl.abs(value) >= max_abs)


@triton.jit
def _tell(value, first, lane, identity, max_abs, BLOCK: tl.constexpr):
    """Print the first bad value and stop the device, if there is one."""
    where = tl.min(tl.where(_bad(value, max_abs), lane, BLOCK), axis=0)
    if where < BLOCK:
        shown = tl.sum(tl.where(lane == where, value, 0.0), axis=0)
        tl.device_print("outlier: id, value, offset:", identity.to(tl.int64), shown, first + where)
        tl.device_assert(where == BLOCK, "outlier")


@triton.jit(do_not_specialize=["identity", "numel"])
def _detect(data, identity, max_abs, numel, per_program, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * per_program
    end = tl.minimum(begin + per_program, numel)
    # Whole blocks need no mask, of which Triton would know too little to load more than a value at a time.
    whole = begin + (end - begin) // BLOCK * BLOCK
    lane = tl.arange(0, BLOCK)
    # Most data are good: which value is bad is looked for only where one is.
    seen = tl.zeros([BLOCK], tl.int32)
    for first in range(begin, whole, BLOCK):
        block = data + tl.multiple_of(first, BLOCK)
        seen |= _bad(tl.load(block + lane).to(tl.float32), max_abs).to(tl.int32)
    if tl.max(seen, axis=0) > 0:
        for first in range(begin, whole, BLOCK):
            _tell(tl.load(data + first + lane).to(tl.float32), first, lane, identity, max_abs, BLOCK)
    if whole < end:
        value = tl.load(data + whole + lane, mask=whole + lane < end, other=0.0).to(tl.float32)
        _tell(value, whole, lane, identity, max_abs, BLOCK)


@functools.cache
def detect_outlier_and_abort_tl(dtype: torch.dtype, max_abs: float = 1e11) -> Kernel:
    """Print id, value and offset and assert on the device at a NaN or |value| >= max_abs."""

    def run(data: torch.Tensor, id: int) -> None:
        numel = data.shape[0]
        programs = min(cdiv(numel, BLOCK), multiprocessors(data.device) * PROGRAMS)
        if programs == 0:
            return
        share = cdiv(cdiv(numel, programs), BLOCK) * BLOCK
        # Asserts need debug; with it comes a check of every sum of integers, which takes longer than all the rest.
        launch(
            _detect, (cdiv(numel, share),), data, id, max_abs, numel, share,
            BLOCK=BLOCK, num_warps=WARPS, debug=True, sanitize_overflow=False,
        )  # fmt: skip

    return run
