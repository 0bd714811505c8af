"""References of `prepare_v4_decode_metadata_tl` and `copy_block_tables_tl` (kernel_spec A.7)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.gather_input_ids_zos import query_rows

PLACEHOLDER = 998244353
"""What query_indices holds for a row of a placeholder (kernel_spec 0.1)."""


@functools.cache
def prepare_v4_decode_metadata_tl(
    max_seqlen_q: int,
    max_num_blocks: int,
    window_size: int,
    swa_block_size: int,
    block_size: int,
    force_load_balance: bool,
    ca_ratios: tuple[int, ...],
    dense_ratios: tuple[int, ...],
    sparse_ratios: tuple[int, ...],
) -> Kernel:
    """Positions, masks, lengths and slots of each query row."""

    def run(
        seqlens_q: torch.Tensor,
        seqlens_k: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        block_tables_in: torch.Tensor,
        block_tables_offsets: torch.Tensor,
        state_block_idx_in: torch.Tensor,
        is_placeholder: torch.Tensor,
        positions: torch.Tensor,
        valid_token_mask: torch.Tensor,
        gate_force_random: torch.Tensor,
        fix_routing_mask: torch.Tensor,
        context_lens: torch.Tensor,
        klen: torch.Tensor,
        kv_ca_index_offset_len: torch.Tensor,
        kv_swa_index_offset_len: torch.Tensor,
        slot_mapping_store_swa: torch.Tensor,
        query_indices: torch.Tensor,
        state_block_idx_out: torch.Tensor,
        positions_c: torch.Tensor,
        slot_mapping_store_ca: torch.Tensor,
    ) -> None:
        rows, live = query_rows(seqlens_q, cu_seqlens_q, max_seqlen_q, positions.shape[0])
        row, sequence = rows[live], live.nonzero()[:, 0]
        position = (seqlens_k - seqlens_q).long()[sequence] + live.nonzero()[:, 1]
        state = state_block_idx_in[sequence].long()
        placeholder = is_placeholder[sequence]
        ring = state * swa_block_size
        visible = (position + 1).clamp(max=window_size)

        positions[row] = position.int()
        valid_token_mask[row] = ~placeholder
        gate_force_random[row] = force_load_balance
        fix_routing_mask[row] = False
        context_lens[row] = (position + 1).int()
        for index, ratio in enumerate(sparse_ratios):
            klen[index, row] = ((position + 1) // ratio).int()
        for index, ratio in enumerate(dense_ratios):
            start = row * max_num_blocks * (block_size // ratio)
            kv_ca_index_offset_len[index, row] = torch.stack([start, (position + 1) // ratio], 1).int()
        start = ring + (position - visible + 1) % swa_block_size
        kv_swa_index_offset_len[row] = torch.stack([start, visible], 1).int()
        slot_mapping_store_swa[row] = (ring + position % swa_block_size).int()
        query_indices[row] = torch.where(placeholder, PLACEHOLDER, sequence).int()
        state_block_idx_out[row] = state.int()
        for index, ratio in enumerate(ca_ratios):
            entries = block_size // ratio
            entry = position // ratio
            place = block_tables_offsets[sequence] + entry // entries
            inside = place < block_tables_offsets[sequence + 1].clamp(max=block_tables_in.shape[0])
            stored = ((position + 1) % ratio == 0) & inside
            block = torch.zeros_like(entry)
            block[stored] = block_tables_in[place[stored].long()].long()
            positions_c[index, row] = torch.where(stored, entry * ratio, 0).int()
            slot_mapping_store_ca[index, row] = torch.where(stored, block * entries + entry % entries, -1).int()

    return run


@functools.cache
def copy_block_tables_tl(max_seqlen_q: int, max_num_blocks: int, BLOCK_SIZE: int = 1024) -> Kernel:
    """Each query row's first columns become the block table of its sequence; the others stay."""

    def run(
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        block_tables_in: torch.Tensor,
        block_tables_offsets: torch.Tensor,
        block_tables_out: torch.Tensor,
    ) -> None:
        rows, live = query_rows(seqlens_q, cu_seqlens_q, max_seqlen_q, block_tables_out.shape[0])
        row, sequence = rows[live], live.nonzero()[:, 0]
        column = torch.arange(max_num_blocks, device=row.device)
        place = block_tables_offsets[sequence].long()[:, None] + column
        end = block_tables_offsets[sequence + 1].clamp(max=block_tables_in.shape[0])
        inside = place < end[:, None]
        table = block_tables_out[row]
        table[inside] = block_tables_in[place[inside]]
        block_tables_out[row] = table

    return run
