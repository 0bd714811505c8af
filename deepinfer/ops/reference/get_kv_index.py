"""References of `load_kv_index_tl` (kernel_spec A.9) and `get_fused_dflash_get_input_tl` (A.8)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def load_kv_index_tl(index_length: int, block_size: int, has_block_tables: bool) -> Kernel:
    """Column j < len of a row: off + j (block_size 0), in a ring, or through a table; -1 elsewhere.

    An entry outside of the table is not read and gives -1.
    """

    def run(offset_len: torch.Tensor, kv_index: torch.Tensor, flatten_block_tables: torch.Tensor | None) -> None:
        offset, length = offset_len.long()[:, :, None].unbind(1)
        column = torch.arange(index_length, device=offset_len.device)
        at, valid = offset + column, column < length
        if has_block_tables:
            assert flatten_block_tables is not None
            page, last = at // block_size, flatten_block_tables.numel() - 1
            valid = valid & (page >= 0) & (page <= last)
            picked = flatten_block_tables[page.clamp(0, last)].long() if last >= 0 else torch.zeros_like(page)
            at = picked * block_size + at % block_size
        elif block_size:
            at = offset // block_size * block_size + at % block_size
        kv_index.copy_(torch.where(valid, at, -1).int())

    return run


@functools.cache
def get_fused_dflash_get_input_tl(
    swa_block_size: int, padded_kv_len: int, has_valid_token_mask: bool, has_gate_force_random: bool
) -> Kernel:
    """Slots, positions, ids, masks [R, D] and key indices [R*D, padded_kv_len] of the draft rows."""

    def run(
        slot_mapping_swa: torch.Tensor,
        positions: torch.Tensor,
        ftp: torch.Tensor,
        last_valid_offset: torch.Tensor,
        newx_slot_mapping_out: torch.Tensor,
        positions_out: torch.Tensor,
        input_ids_out: torch.Tensor,
        valid_token_mask_out: torch.Tensor | None,
        gate_force_random_out: torch.Tensor | None,
        kv_index_out: torch.Tensor,
        kv_len: int,
        window_size: int,
    ) -> None:
        drafts = positions_out.shape[1]
        valid = ((ftp >= 0) & (ftp < positions.shape[0]))[:, None]
        first = torch.where(valid[:, 0], ftp, 0).long()
        safe = positions.shape[0] > 0
        place = positions[first] if safe else torch.zeros_like(ftp)
        base = (slot_mapping_swa[first] - place % swa_block_size if safe else place)[:, None]
        last = (place + last_valid_offset)[:, None]

        ahead = last + 1 + torch.arange(drafts, dtype=torch.int32, device=ftp.device)
        positions_out.copy_(torch.where(valid, ahead, 0))
        newx_slot_mapping_out.copy_(torch.where(valid, ahead % swa_block_size + base, -1))
        input_ids_out.zero_()
        if has_valid_token_mask:
            assert valid_token_mask_out is not None
            valid_token_mask_out.copy_(valid.expand(-1, drafts))
        if has_gate_force_random:
            assert gate_force_random_out is not None
            gate_force_random_out.zero_()
        column = torch.arange(padded_kv_len, dtype=torch.int32, device=ftp.device)
        seen = last - (window_size - 1) + column
        key = torch.where(valid & (column < kv_len) & (seen >= 0), seen % swa_block_size + base, -1)
        kv_index_out.copy_(key.repeat_interleave(drafts, 0))

    return run
