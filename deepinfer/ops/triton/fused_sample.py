"""`fused_sample_tl` in Triton (kernel_spec A.1, B.1 to B.3): temperature, top-p and top-k, renormalisation, draw or
verification. The parts are in sample_rows, sample_filter, sample_threshold, sample_write and sample_draw.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, multiprocessors, next_power_of_2
from deepinfer.ops.triton.inverse_cdf import depth_of, lanes_of
from deepinfer.ops.triton.sample_draw import draw_tokens
from deepinfer.ops.triton.sample_filter import CAPACITY, COARSE, SPLIT, collect, list_bounded, split_bracket
from deepinfer.ops.triton.sample_rows import chunk_sums, row_sums
from deepinfer.ops.triton.sample_threshold import find_threshold
from deepinfer.ops.triton.sample_write import write_logprobs

_CHUNK = 8192
_PART = 4096
_SMALL = 512
_DRAWING = 8
_FULL = 8
"""Programs for each multiprocessor among which rows are shared out."""
_LISTING, _NARROWING = 3, 2
"""Programs that each multiprocessor has room for, in the passes over queued rows: more would only start in vain."""
_KEPT = 5
"""Chunks for each multiprocessor that the first pass keeps in the L2 cache: 21 of an H200's 50 MB."""
_BRACKETS = 4 * (COARSE + 1)
_BINS = next_power_of_2(SPLIT.value * COARSE)


@dataclass(frozen=True)
class Plan:
    """How rows of a width are cut; nothing of it depends on how many rows there are.

    chunk: values a program, which fixes the order of the one sum of floats. part: the same in passes that add whole
    numbers, smaller for the sake of registers. steps: passes that narrow the bracket; capacity: what is few enough.
    Results depend on the width alone: other parts, steps and capacities give the same bits.
    """

    width: int
    chunk: int
    part: int
    capacity: int
    steps: int

    @staticmethod
    def of(width: int) -> Plan:
        chunk = min(_CHUNK, next_power_of_2(width))
        return Plan(width, chunk, min(_PART, chunk), min(CAPACITY, chunk), COARSE if width > CAPACITY else 0)

    @property
    def chunks(self) -> int:
        return cdiv(self.width, self.chunk)

    @property
    def groups(self) -> int:
        """Groups of a chunk whose largest values bound those that top-k keeps; 0 where all values are listed anyway."""
        return max(self.chunk // 32, 1) if self.steps else 0

    @property
    def lanes(self) -> int:
        return lanes_of(self.width)

    @staticmethod
    def shares(rows: int, device: torch.device) -> int:
        """Programs a row that fill the device; at least four, as rows are not all alike."""
        return max(4, _FULL * multiprocessors(device) // max(rows, 1))

    @property
    def warps(self) -> int:
        return 8 if self.chunk > 2048 else 4


@dataclass(frozen=True)
class Writing:
    """How the pass that writes is cut; any way gives the same bits.

    rows: times the lanes, values that a program takes at a time. warps: of a program. registers: a thread's at most,
    None for as many as it takes.
    """

    rows: int
    warps: int
    registers: int | None

    @staticmethod
    def of(do_reject_sampling: bool) -> Writing:
        """Rows to be verified read their draft as well: small programs, of which eight fit on a multiprocessor, do
        better there; others ask for their next values early, and do better with twice as many at a time."""
        return Writing(1, 4, 64) if do_reject_sampling else Writing(2, 8, 80)


class _Scratch:
    """What the launches of one call tell each other.

    By row: `partial`, of each chunk; `facts`: inverse temperature, -largest, -log of the sum, offset and threshold of
    what is written, smallest; `states`, with the last tie kept; `brackets`, `bins` of the search; `sums`: probability
    above the bracket, how many values are `listed`; `lanes`, their masses; `groups`, their largest values. Of all
    rows: `counts` [2], how many are in the first and the second queue, and `queue` [2 * rows], which.
    """

    def __init__(self, rows: int, plan: Plan, device: torch.device) -> None:
        def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((rows, *shape), dtype=dtype, device=device)

        self.partial = empty(plan.chunks, 4, dtype=torch.float32)
        self.facts = empty(8, dtype=torch.float32)
        self.states = empty(2, dtype=torch.int32)
        self.brackets = empty(_BRACKETS, dtype=torch.int64)
        self.bins = empty(_BINS, dtype=torch.int64)
        self.sums = empty(2, dtype=torch.int64)
        self.listed = empty(plan.capacity, dtype=torch.float32)
        self.lanes = empty(plan.lanes, dtype=torch.int32)
        self.groups = empty(plan.chunks * plan.groups, dtype=torch.float32)
        self.counts = torch.empty(2, dtype=torch.int32, device=device)
        self.queue = empty(2, dtype=torch.int32)


def _filter(
    plan: Plan,
    scratch: _Scratch,
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    workspace: torch.Tensor,
) -> None:
    rows, width, chunks = logits.shape[0], plan.width, plan.chunks
    parts, stride8, many = cdiv(width, plan.part), logits.stride(0) // 8, multiprocessors(logits.device)
    units = rows * min(parts, plan.shares(rows, logits.device))
    heat = (temperatures, temperatures.stride(0))
    limits = (top_p, top_p.stride(0), top_k, top_k.stride(0))
    exact = {"enable_fp_fusion": False, "num_warps": plan.warps, "launch_pdl": True}
    sizes = {"BRACKETS": _BRACKETS, "CAPACITY": plan.capacity}
    passes = {**sizes, **exact, "PART": plan.part, "FILL": _FULL * many}
    s = scratch
    launch(
        chunk_sums, (rows * chunks,), logits, stride8, *heat, *limits[2:], s.partial, s.bins, s.sums, s.lanes, s.groups,
        s.counts, width, chunks, _KEPT * many,
        CHUNK=plan.chunk, LANES=plan.lanes, BINS=_BINS, GROUPS=plan.groups, **exact,
    )  # fmt: skip
    launch(
        row_sums, (rows,), *heat, *limits, s.partial, s.facts, s.states, s.brackets, workspace, s.groups, s.counts,
        s.queue, rows, width, chunks, chunks * plan.groups, CHUNKS=next_power_of_2(chunks), **sizes,
        SIZE=next_power_of_2(chunks * plan.groups) if plan.groups else 0,
        enable_fp_fusion=False, num_warps=4 if plan.groups else 1, launch_pdl=True,
    )  # fmt: skip
    if plan.groups:
        launch(
            list_bounded, (min(units, _LISTING * many),), logits, stride8, s.brackets, s.sums, s.listed, s.counts,
            s.queue, width, parts, **passes,
        )  # fmt: skip
    for step in range(plan.steps):
        launch(
            split_bracket, (min(units, _NARROWING * many),), logits, stride8, *limits, s.facts, s.brackets, s.bins,
            s.counts, s.queue, rows, step, width, parts, BINS=_BINS, **passes,
        )  # fmt: skip
    launch(
        collect, (min(units, _NARROWING * many),), logits, stride8, *limits, s.facts, s.brackets, s.bins, s.sums,
        s.listed, s.counts, s.queue, rows, width, parts, STEPS=plan.steps, BINS=_BINS, **passes,
    )  # fmt: skip
    launch(
        find_threshold, (rows,), logits, stride8, *limits, s.facts, s.states, s.brackets, s.sums, s.listed, s.counts,
        s.queue, rows, width,
        STEPS=plan.steps, TILE=plan.capacity, SMALL=min(_SMALL, plan.capacity), **sizes, **exact,
    )  # fmt: skip


@functools.cache
def fused_sample_tl(vocab_size: int, do_sample: bool, do_reject_sampling: bool) -> Kernel:
    """Filter, renormalise, and draw or verify; arguments as kernel_spec A.1 lists them."""
    return kernel_of(Plan.of(vocab_size), Writing.of(do_reject_sampling), do_sample, do_reject_sampling)


def kernel_of(plan: Plan, writing: Writing, do_sample: bool, do_reject_sampling: bool) -> Kernel:
    """The kernel with its rows cut as a plan says, and for the last pass over them as `writing` does."""

    def run(
        logits: torch.Tensor,
        temperatures: torch.Tensor,
        top_p: torch.Tensor,
        top_k: torch.Tensor,
        sample_positions: torch.Tensor | None,
        seq_seeds: torch.Tensor | None,
        is_verify: torch.Tensor | None,
        logprobs: torch.Tensor,
        candidate_token_ids: torch.Tensor | None,
        last_nextn_token_logprobs: torch.Tensor,
        mtp_info_read_rows: torch.Tensor | None,
        last_next_n_token_ids: torch.Tensor | None,
        accept_result_verify: torch.Tensor | None,
        draft_selected_logprobs: torch.Tensor | None,
        accept_probs: torch.Tensor | None,
        seed_offset: int,
        lse_workspace: torch.Tensor,
    ) -> None:
        rows = logits.shape[0]
        s = _Scratch(rows, plan, logits.device)
        _filter(plan, s, logits, temperatures, top_p, top_k, lse_workspace)
        pool = last_nextn_token_logprobs if do_reject_sampling else logits
        read_rows = s.states if mtp_info_read_rows is None else mtp_info_read_rows
        verify = is_verify if do_reject_sampling else s.states
        lane_rows = min(writing.rows, plan.chunk // plan.lanes)
        parts = cdiv(plan.width, lane_rows * plan.lanes)
        programs = min(parts, plan.shares(rows, logits.device))
        common = (logits, logits.stride(0) // 8, logprobs, logprobs.stride(0) // 8)
        draft = (pool, pool.stride(0) // 8, pool.shape[0], read_rows)
        flags = {
            "REJECT": do_reject_sampling,
            "IDENTITY": mtp_info_read_rows is None,
            "enable_fp_fusion": False,
            "launch_pdl": True,
        }
        bound = {} if writing.registers is None else {"maxnreg": writing.registers}
        launch(
            write_logprobs, (rows * programs,), *common, *draft, verify, s.facts, s.states, s.lanes,
            plan.width, parts, programs,
            ROWS=lane_rows, LANES=plan.lanes, SAMPLE=do_sample, **flags, **bound,
            num_warps=min(writing.warps, plan.warps),
        )  # fmt: skip
        if not do_sample:
            return
        outputs = (accept_result_verify, draft_selected_logprobs, accept_probs)
        launch(
            draw_tokens, (rows,), *common, *draft, last_next_n_token_ids if do_reject_sampling else s.states, verify,
            sample_positions, sample_positions.stride(0), seq_seeds.view(torch.int64), seq_seeds.stride(0), seed_offset,
            s.facts, s.states, s.lanes, candidate_token_ids,
            *(outputs if do_reject_sampling else (s.states, s.states, s.states)),
            plan.width, LANES=plan.lanes, DEPTH=depth_of(plan.width), **flags, num_warps=min(_DRAWING, plan.warps),
        )  # fmt: skip

    return run
