"""`load_kv_index_tl` (kernel_spec A.9) and `get_fused_dflash_get_input_tl` (A.8) in Triton."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.early import await_inputs
from deepinfer.ops.triton.index_math import floor_mod, shift, split, tile


@triton.jit
def _of_pages(
    tables, entries, page, rest, first, end,
    BLOCK_SIZE: tl.constexpr, SHIFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Slots of columns that begin `rest` behind the begin of the page number `page`, [ROWS, COLUMNS].

    A thread writes four columns at once: they lie in no more pages than two, so that two entries are looked up.
    first, end: the columns whose pages are in the table and wanted; what the others get means nothing.
    """
    NEAR: tl.constexpr = 4 if BLOCK_SIZE >= 4 else 1
    column = (tl.program_id(1) * COLUMNS + NEAR * tl.arange(0, COLUMNS // NEAR))[None, :]
    inside = rest[:, None] + column
    wanted = (column >= first[:, None]) & (column < end[:, None])
    near = tl.load(tables + page[:, None] + split(inside, BLOCK_SIZE, SHIFT)[0], mask=wanted, other=0)
    if NEAR == 1:
        return near * BLOCK_SIZE + split(inside, BLOCK_SIZE, SHIFT)[1]
    else:
        # The four may reach over either end of the columns that are wanted, and their last page beyond the table.
        other = page[:, None] + split(inside + NEAR - 1, BLOCK_SIZE, SHIFT)[0]
        far = tl.load(tables + other, mask=(other >= 0) & (other < entries) & (column < end[:, None]), other=0)
        k = tl.arange(0, NEAR)[None, None, :]
        place = split(inside[:, :, None] + k, BLOCK_SIZE, SHIFT)[1]
        value = tl.where(place < k, far[:, :, None], near[:, :, None]) * BLOCK_SIZE + place
        return tl.reshape(value, (ROWS, COLUMNS))


@triton.jit(do_not_specialize=["n", "entries"])
def _load_kv_index(
    offset_len,
    kv_index,
    tables,
    n,
    width,
    stride,
    entries,
    BLOCK_SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    PAGED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    own = offset_len + rows.to(tl.int64) * 2
    offset = tl.load(own, mask=rows < n, other=0)
    length = tl.load(own + 1, mask=rows < n, other=0)
    # What can be said of a row is not worked out again for every column: that would take longer than the stores.
    first, end = tl.zeros([ROWS], tl.int32), tl.minimum(length, width)
    if PAGED:
        # offset + column has to be in the table: [0, entries * BLOCK_SIZE).
        wide = offset.to(tl.int64)
        first = tl.minimum(tl.maximum(-wide, 0), width).to(tl.int32)
        end = tl.minimum(end, tl.maximum(entries.to(tl.int64) * BLOCK_SIZE - wide, 0)).to(tl.int32)
    valid = (column >= first[:, None]) & (column < end[:, None])
    if BLOCK_SIZE == 0:
        value = offset[:, None] + column
    else:
        # Counted from the begin of the offset's block: offset + column might pass 2^31.
        rest = floor_mod(offset, BLOCK_SIZE)
        begin = offset - rest
        if PAGED:
            # begin is a multiple of the block size: / is exact, whatever the sign.
            page = begin // BLOCK_SIZE
            value = _of_pages(tables, entries, page, rest, first, end, BLOCK_SIZE, SHIFT, ROWS, COLUMNS)
        else:
            value = begin[:, None] + split(rest[:, None] + column, BLOCK_SIZE, SHIFT)[1]
    row = rows[:, None]
    out = kv_index + row.to(tl.int64) * stride + column
    tl.store(out, tl.where(valid, value, -1), mask=(row < n) & (column < width))


def _tile(rows: int, width: int) -> tuple[int, int]:
    """(rows, columns) of a program. Of wide rows one: what is to be known of a row is worked out by every thread."""
    return (1, 4096) if width > 2048 and rows * width >= 1 << 20 else tile(rows, width)


@functools.cache
def load_kv_index_tl(index_length: int, block_size: int, has_block_tables: bool) -> Kernel:
    """Column j < len of a row: off + j (block_size 0), in a ring, or through a table; -1 elsewhere.

    An entry outside of the table is not read and gives -1.
    """

    def run(offset_len: torch.Tensor, kv_index: torch.Tensor, flatten_block_tables: torch.Tensor | None) -> None:
        n = kv_index.shape[0]
        rows, columns = _tile(n, index_length)
        launch(
            _load_kv_index,
            (cdiv(n, rows), cdiv(index_length, columns)),
            offset_len,
            kv_index,
            flatten_block_tables if has_block_tables else None,
            n,
            index_length,
            kv_index.stride(0),
            flatten_block_tables.numel() if has_block_tables else 0,
            BLOCK_SIZE=block_size,
            SHIFT=shift(block_size),
            PAGED=has_block_tables,
            ROWS=rows,
            COLUMNS=columns,
            launch_pdl=True,
        )

    return run


@triton.jit(do_not_specialize=["queries", "drafts", "kv_len", "window"])
def _draft_input(
    slot_mapping_swa,
    positions,
    ftp,
    last_valid_offset,
    slots_out,
    positions_out,
    input_ids_out,
    valid_out,
    random_out,
    kv_index_out,
    queries,
    drafts,
    kv_len,
    window,
    RING: tl.constexpr,
    HAS_VALID: tl.constexpr,
    HAS_RANDOM: tl.constexpr,
    DRAFTS: tl.constexpr,
    PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    await_inputs()
    request = tl.program_id(0).to(tl.int64)
    first = tl.load(ftp + request)
    valid = (first >= 0) & (first < queries)
    place = tl.load(positions + first, mask=valid, other=0)
    base = tl.load(slot_mapping_swa + first, mask=valid, other=0) - floor_mod(place, RING)
    last = place + tl.load(last_valid_offset + request)

    draft = tl.arange(0, DRAFTS)
    own = draft < drafts
    out = request * drafts + draft
    ahead = last + 1 + draft
    tl.store(positions_out + out, tl.where(valid, ahead, 0), mask=own)
    tl.store(slots_out + out, tl.where(valid, floor_mod(ahead, RING) + base, -1), mask=own)
    tl.store(input_ids_out + out, tl.zeros([DRAFTS], tl.int32), mask=own)
    if HAS_VALID:
        tl.store(valid_out + out, (valid & own).to(tl.int8), mask=own)
    if HAS_RANDOM:
        tl.store(random_out + out, tl.zeros([DRAFTS], tl.int8), mask=own)

    for begin in range(0, PADDED, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        seen = last - (window - 1) + column
        key = tl.where(valid & (column < kv_len) & (seen >= 0), floor_mod(seen, RING) + base, -1)
        rows = kv_index_out + out[:, None] * PADDED + column[None, :]
        inside = own[:, None] & (column < PADDED)[None, :]
        tl.store(rows, tl.broadcast_to(key[None, :], (DRAFTS, COLUMNS)), mask=inside)


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
        requests, drafts = positions_out.shape
        launch(
            _draft_input,
            (requests,),
            slot_mapping_swa,
            positions,
            ftp,
            last_valid_offset,
            newx_slot_mapping_out,
            positions_out,
            input_ids_out,
            _bytes(valid_token_mask_out),
            _bytes(gate_force_random_out),
            kv_index_out,
            positions.shape[0],
            drafts,
            kv_len,
            window_size,
            RING=swa_block_size,
            HAS_VALID=has_valid_token_mask,
            HAS_RANDOM=has_gate_force_random,
            DRAFTS=next_power_of_2(drafts),
            PADDED=padded_kv_len,
            COLUMNS=min(next_power_of_2(padded_kv_len), 256),
            launch_pdl=True,
        )

    return run


def _bytes(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else mask.view(torch.int8)
