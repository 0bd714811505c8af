"""Reference of `gather_engram_tokens_zos_tl` (kernel_spec A.6)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.gather_input_ids_zos import query_rows


@functools.cache
def gather_engram_tokens_zos_tl(
    max_seqlen_q: int, max_ngram_size: int, engram_compressed_pad_token: int, image_sentinel: int
) -> Kernel:
    """out[row] = the row's compressed id and those before it, newest first, up to the first image token."""
    nextn = max_seqlen_q - 1

    def run(
        window: torch.Tensor,
        fresh: torch.Tensor,
        sampled: torch.Tensor,
        predict: torch.Tensor,
        accepted: torch.Tensor,
        remap: torch.Tensor,
        table: torch.Tensor,
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        known = (remap >= 0) & (remap < sampled.shape[0])
        before = remap[known].long()
        current = fresh.clone()
        current[known] = _looked_up(table, torch.cat([sampled[:, None], predict], dim=1)[before], image_sentinel)
        rejected = torch.full_like(remap, nextn)
        rejected[known] -= accepted[before]
        # History and current tokens in one line; look-back r of step j is column width + j - r, less those rejected.
        line, width = torch.cat([window, current], dim=1), window.shape[1]
        step = torch.arange(max_seqlen_q, device=remap.device)[:, None]
        back = step - torch.arange(max_ngram_size, device=remap.device)
        past = back < 0
        column = width + back - torch.where(past, rejected[:, None, None], 0)
        inside = (column >= 0) & (~past | (column < width))
        grams = line.gather(1, column.clamp(0, line.shape[1] - 1).flatten(1)).view(column.shape)
        ended = ((grams == image_sentinel) | ~inside).int().cummax(dim=2).values.bool()
        grams = grams.masked_fill(ended, engram_compressed_pad_token)
        rows, live = query_rows(seqlens_q, cu_seqlens_q, max_seqlen_q, out.shape[0])
        out[rows[live]] = grams[live]

    return run


def _looked_up(table: torch.Tensor, ids: torch.Tensor, missing: int) -> torch.Tensor:
    """table[ids], `missing` for ids outside of it."""
    inside = (ids >= 0) & (ids < table.shape[0])
    found = torch.full_like(ids, missing)
    found[inside] = table[ids[inside].long()]
    return found
