"""Reference of the context-parallel index kernels (kernel_spec A.18)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


def _prefix(lengths: torch.Tensor) -> torch.Tensor:
    """[n + 1]: exclusive prefix sums."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _of_each(starts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of `count` places: the sequence it is in (empty ones have none), and which one in it."""
    place = torch.arange(count, device=starts.device)
    sequence = torch.bucketize(place, starts[1:].contiguous(), right=True)
    return sequence, place - starts[sequence]


@functools.cache
def prepare_cp_mirror_tl(cp_size: int, compress_ratios: tuple[int, ...]) -> Kernel:
    """Token -> gathered mirror row; mirror row -> token, and the compressed context that it sees."""

    def run(
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        cu_lens: torch.Tensor,
        mirror_cp_reverse_index: torch.Tensor,
        mirror_cp_index: torch.Tensor,
        ks_out: torch.Tensor,
        ke_out: torch.Tensor,
        cp_rank: int,
    ) -> None:
        cu_q, sk = cu_seqlens_q.long(), cu_seqlens_k.long().diff()
        sq = cu_q.diff()
        ps = (sq + 2 * cp_size - 1) // (2 * cp_size)
        starts = _prefix(2 * ps)
        rows = mirror_cp_index.shape[0]
        sequence, u = _of_each(cu_q, mirror_cp_reverse_index.shape[0])
        block = u // ps[sequence]
        half = (block >= cp_size).long()
        owner = torch.where(half == 0, block, 2 * cp_size - 1 - block)
        into = starts[sequence] + half * ps[sequence] + u - block * ps[sequence]
        mirror_cp_reverse_index.copy_(owner * rows + into)
        sequence, row = _of_each(starts, rows)
        half = row // ps[sequence]
        block = torch.where(half == 0, cp_rank, 2 * cp_size - 1 - cp_rank)
        u = block * ps[sequence] + row - half * ps[sequence]
        valid = u < sq[sequence]
        mirror_cp_index.copy_(torch.where(valid, cu_q[sequence] + u, -1))
        for index, ratio in enumerate(compress_ratios):
            begin = _prefix((sk // ratio).clamp(min=1))[sequence]
            ks_out[index] = begin
            ke_out[index] = begin + torch.where(valid, ((sk - sq)[sequence] + u + 1) // ratio, 0)

    return run


@functools.cache
def yoco_cp_boundary_fused_tl(cp_size: int) -> Kernel:
    """Kept mirror rows of this rank; kept token -> its place among the gathered kept rows."""

    def run(
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_q_c: torch.Tensor,
        cu_lens: torch.Tensor,
        yoco_contrib_index: torch.Tensor,
        yoco_gathered_reverse_index: torch.Tensor,
        cp_rank: int,
    ) -> None:
        kept: list[list[int]] = [[] for _ in range(cp_size)]
        place: dict[tuple[int, int], int] = {}
        lengths, suffixes = cu_seqlens_q.diff().tolist(), cu_seqlens_q_c.diff().tolist()
        begin = 0
        for sequence, (sq, suffix) in enumerate(zip(lengths, suffixes, strict=True)):
            ps = -(-sq // (2 * cp_size))
            for rank in range(cp_size):
                for half, block in enumerate((rank, 2 * cp_size - 1 - rank)):
                    for u in range(max(block * ps, sq - suffix), min((block + 1) * ps, sq)):
                        place[sequence, u - (sq - suffix)] = rank * yoco_contrib_index.shape[0] + len(kept[rank])
                        kept[rank].append(begin + half * ps + u - block * ps)
            begin += 2 * ps
        yoco_contrib_index.fill_(-1)
        mine = kept[cp_rank]
        yoco_contrib_index[: len(mine)] = torch.tensor(mine, dtype=torch.int32, device=yoco_contrib_index.device)
        found = [place[i, v] for i, suffix in enumerate(suffixes) for v in range(suffix)]
        yoco_gathered_reverse_index.copy_(torch.tensor(found, dtype=torch.int32))

    return run
