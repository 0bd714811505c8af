"""Kernels that are started before the launch ahead of them has ended: programmatic dependent launch, from Hopper on.

A launch with `launch_pdl=True` is set up while the last programs of the one before it still run, which hides 0.3 to
0.6 us of what starting a kernel takes (twelve launches of a decode step, on an H200). Its kernel has to call
`await_inputs` before it reads or writes any memory; `ops/variants.py` checks the code for it.

The wait is for the launch ahead alone, until it is complete and what it wrote is seen. It stands for all launches
before: each program waits before it ends, so that a launch is complete only after the one ahead of it is, and so on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.ops.triton.quantize import INTERPRETED


@triton.jit
def await_inputs():
    """Wait until every launch before this one has ended and what it wrote is seen."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start():
    """Let the next launch start once every program of this one has come here, and wait for its end.

    For kernels of a chain whose programs mostly find nothing to do. Elsewhere the programs that wait take the room of
    those that work: kernels of many programs took up to 1.7 times as long.
    """
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()
