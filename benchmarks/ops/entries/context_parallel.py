"""The indices of context-parallel prefill over 8 ranks."""

from __future__ import annotations

import torch

from benchmarks.ops.entry import Entry, Inputs, Work, reads, work, writes
from benchmarks.ops.model import RATIOS
from deepinfer.ops.cases.prepare_cp_mirror import kept_rows

CP, RANK = 8, 3
PROMPT = 1024
KEPT = 140
"""Last tokens of a prompt that go on behind the boundary."""


def _lengths(rows: int) -> list[int]:
    return [min(PROMPT, rows - begin) for begin in range(0, rows, PROMPT)]


def _starts(lengths: list[int], inputs: Inputs) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=inputs.device).cumsum(0).int()


def _mirror(rows: int, inputs: Inputs) -> Work:
    lengths = _lengths(rows)
    own = sum(2 * -(-one // (2 * CP)) for one in lengths)
    count = len(RATIOS)
    arguments = [
        *reads(cu_seqlens_q=_starts(lengths, inputs), cu_seqlens_k=_starts(lengths, inputs)),
        *writes(cu_lens=inputs.empty(count + 1, len(lengths) + 1), mirror_cp_reverse_index=inputs.empty(rows)),
        *writes(mirror_cp_index=inputs.empty(own), ks_out=inputs.empty(count, own), ke_out=inputs.empty(count, own)),
        *reads(cp_rank=RANK),
    ]
    return work(arguments, (CP, RATIOS))


def _boundary(rows: int, inputs: Inputs) -> Work:
    lengths = _lengths(rows)
    keeps = [min(KEPT, one) for one in lengths]
    padded = max(kept_rows(lengths, keeps, CP))
    arguments = [
        *reads(cu_seqlens_q=_starts(lengths, inputs), cu_seqlens_q_c=_starts(keeps, inputs)),
        *writes(cu_lens=inputs.empty(CP + 1, len(lengths) + 1), yoco_contrib_index=inputs.empty(padded)),
        *writes(yoco_gathered_reverse_index=inputs.empty(sum(keeps))),
        *reads(cp_rank=RANK),
    ]
    return work(arguments, (CP,))


ENTRIES = [
    Entry("prepare_cp_mirror_tl", "8-ranks", _mirror),
    Entry("yoco_cp_boundary_fused_tl", "8-ranks", _boundary),
]
