"""References of the compressor's kernels (kernel_spec A.12)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


def _combine(scores: list[torch.Tensor], latents: list[torch.Tensor]) -> torch.Tensor:
    """bf16(sum of latents weighted by the softmax of scores), channel by channel; one alone is only rounded."""
    if len(latents) == 1:
        return latents[0].bfloat16()
    score, latent = torch.stack(scores), torch.stack(latents)
    weight = torch.exp((score - score.amax(0)).double()).float()  # see `gate`
    return (latent * (weight / weight.sum(0))).sum(0).bfloat16()


def _rows(table: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """table[row], zeros where there is no such row."""
    inside = (row >= 0) & (row < len(table))
    if len(table) == 0:
        return table.new_zeros((len(row), *table.shape[1:]))
    return torch.where(inside[:, None], table[torch.where(inside, row, 0)], 0)


@functools.cache
def compress_and_update_state_prefill_tl(DIM: int, COMPRESS_RATIO: int, HAS_INDEX: bool) -> Kernel:
    """kv_compressed of a chunk, then its last tokens into the rings; what is out of range counts as zeros."""
    r = COMPRESS_RATIO

    def run(
        score: torch.Tensor,
        latent: torch.Tensor,
        state_cache: torch.Tensor,
        state_block_idx: torch.Tensor,
        compressed_batch_mapping: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        cu_compressed_seqlens_q: torch.Tensor,
        mirror_cp_reverse_index: torch.Tensor | None,
        kv_compressed: torch.Tensor,
    ) -> None:
        slots, ring = state_cache.shape[:2]
        state = state_cache.flatten(0, 1).unbind(1)
        begin, klen = cu_seqlens_q.long()[:-1], cu_seqlens_k.long().diff()
        qlen, slot = cu_seqlens_q.long().diff(), state_block_idx.long()
        qstart = klen - qlen
        slot = torch.where((slot >= 0) & (slot < slots), slot, -1)

        def row_of(token: torch.Tensor) -> torch.Tensor:
            if mirror_cp_reverse_index is None:
                return token
            return _rows(mirror_cp_reverse_index[:, None] + 1, token)[:, 0].long() - 1

        def old_row(i: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            return torch.where(slot[i] >= 0, slot[i] * ring + position % ring, -1)

        kv_compressed.zero_()
        x = ((compressed_batch_mapping >= 0) & (compressed_batch_mapping < len(slot))).nonzero()[:, 0]
        i = compressed_batch_mapping[x].long()
        ident = x - cu_compressed_seqlens_q[i]
        new = (ident >= 0) & (ident < (klen // r - qstart // r)[i]) & (qstart[i] >= 0)
        x, i, ident = x[new], i[new], ident[new]
        scores, latents = [], []
        for a in range(r):
            position = (qstart[i] // r + ident) * r + a
            old = (position < qstart[i])[:, None]
            row = row_of(begin[i] + position - qstart[i])
            kept = old_row(i, position)
            scores.append(torch.where(old, _rows(state[0], kept), _rows(score, row)))
            latents.append(torch.where(old, _rows(state[1], kept), _rows(latent, row)))
        kv_compressed[x] = _combine(scores, latents)

        t = torch.arange(ring, device=score.device)
        i, t = (t < qlen[:, None]).nonzero().unbind(1)
        position = klen[i] - 1 - t
        row, kept = row_of((begin + qlen)[i] - 1 - t), old_row(i, position)
        stored = (position >= 0) & (kept >= 0) & (row >= 0) & (row < len(score))
        at = (kept[stored] // ring, kept[stored] % ring)
        state_cache[(*at, 0)] = score[row[stored]]
        state_cache[(*at, 1)] = latent[row[stored]]

    return run


@functools.cache
def compress_and_update_state_decode_tl(DIM: int, COMPRESS_RATIO: int) -> Kernel:
    """All rows into their rings, then kv_compressed of those that complete a window, zeros for the others."""
    r = COMPRESS_RATIO

    def run(
        score: torch.Tensor,
        latent: torch.Tensor,
        state_cache: torch.Tensor,
        state_block_idx: torch.Tensor,
        context_lens: torch.Tensor,
        kv_compressed: torch.Tensor,
    ) -> None:
        slots, ring = state_cache.shape[:2]
        slot, last = state_block_idx.long(), context_lens.long() - 1
        known = (last >= 0) & (slot >= 0) & (slot < slots)
        at = (slot[known], last[known] % ring)
        state_cache[(*at, 0)] = score[known]
        state_cache[(*at, 1)] = latent[known]

        done = known & (context_lens % r == 0)
        rows = [(slot[done], (last[done] - (r - 1) + a) % ring) for a in range(r)]
        kv_compressed.zero_()
        kv_compressed[done] = _combine(
            [state_cache[(*row, 0)] for row in rows], [state_cache[(*row, 1)] for row in rows]
        )

    return run
