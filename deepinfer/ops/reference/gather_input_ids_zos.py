"""Reference of `gather_input_ids_zos_tl` (kernel_spec A.6)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def gather_input_ids_zos_tl(max_seqlen_q: int) -> Kernel:
    """out[base_i + j] = (sampled, predicted...)[j] of the row before, or fresh[i, j]."""

    def run(
        fresh: torch.Tensor,
        sampled: torch.Tensor,
        predict: torch.Tensor,
        remap: torch.Tensor,
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        tokens = fresh.clone()
        known = (remap >= 0) & (remap < sampled.shape[0])
        tokens[known] = torch.cat([sampled[:, None], predict], dim=1)[remap[known].long()]
        rows, live = query_rows(seqlens_q, cu_seqlens_q, max_seqlen_q, out.shape[0])
        out[rows[live]] = tokens[live]

    return run


def query_rows(
    seqlens_q: torch.Tensor, cu_seqlens_q: torch.Tensor, max_seqlen_q: int, total_q: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, max_seqlen_q] int64 query row of step j of sequence i, and bool whether there is such a row."""
    step = torch.arange(max_seqlen_q, device=seqlens_q.device)
    base = torch.nn.functional.pad(cu_seqlens_q.long(), (1, 0))[:-1]
    rows = base[:, None] + step
    return rows, (step < seqlens_q[:, None]) & (rows < total_q)
