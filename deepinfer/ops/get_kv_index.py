"""Rows of key indices from (offset, length), and the draft model's metadata (kernel_spec A.8, A.9)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

MAX_DFLASH_BLOCK_SIZE = 32
Draft = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]


def get_kv_ca_index_prefill(kv_ca_index_offset_len: torch.Tensor, kv_ca_index_length: int) -> torch.Tensor:
    """Contiguous rows: column j < len holds offset + j (int32, wraps around), the others -1.

    Args:
        kv_ca_index_offset_len: [n, 2] int32, contiguous: offset and len; a len above the width is clipped.
        kv_ca_index_length: columns.

    Returns:
        [n, kv_ca_index_length] int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("get_kv_ca_index_prefill")
    check.tensor("kv_ca_index_offset_len", kv_ca_index_offset_len, torch.int32, ("n", 2), rows="contiguous")
    check.whole_number("kv_ca_index_length", kv_ca_index_length, at_least=1)
    return _load(kv_ca_index_offset_len, kv_ca_index_length, 0, None)


def get_kv_ca_index_decode(
    kv_ca_index_offset_len: torch.Tensor, kv_ca_index_length: int, token_per_block: int, block_tables: torch.Tensor
) -> torch.Tensor:
    """Paged rows: column j < len holds table[(offset+j) // bs] * bs + (offset+j) % bs, the others -1.

    The table is read flat, so that row i of it begins at offset i * columns * bs. What lies outside of the table is
    never read and becomes -1.

    Args:
        kv_ca_index_offset_len: [n, 2] int32, contiguous: offset and len; a len above the width is clipped.
        kv_ca_index_length: columns.
        token_per_block: bs, entries a block.
        block_tables: int32 of any shape, contiguous.

    Returns:
        [n, kv_ca_index_length] int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("get_kv_ca_index_decode")
    check.tensor("kv_ca_index_offset_len", kv_ca_index_offset_len, torch.int32, ("n", 2), rows="contiguous")
    check.whole_number("kv_ca_index_length", kv_ca_index_length, at_least=1)
    check.whole_number("token_per_block", token_per_block, at_least=1, at_most=2**30)
    check.require(isinstance(block_tables, torch.Tensor), "block_tables", "must be a tensor")
    check.tensor("block_tables", block_tables, torch.int32, (None,) * block_tables.dim(), rows="contiguous")
    return _load(kv_ca_index_offset_len, kv_ca_index_length, token_per_block, block_tables.view(-1))


def get_kv_swa_index_decode(
    kv_swa_index_offset_len: torch.Tensor, window_size: int, swa_block_size: int
) -> torch.Tensor:
    """Ring rows: column j < len holds (offset // bs) * bs + (offset+j) % bs, the others -1: it stays in its ring.

    Args:
        kv_swa_index_offset_len: [n, 2] int32, contiguous: offset and len; a len above the width is clipped.
        window_size: columns.
        swa_block_size: bs, rows of a ring.

    Returns:
        [n, window_size] int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("get_kv_swa_index_decode")
    check.tensor("kv_swa_index_offset_len", kv_swa_index_offset_len, torch.int32, ("n", 2), rows="contiguous")
    check.whole_number("window_size", window_size, at_least=1, at_most=2**30)
    check.whole_number("swa_block_size", swa_block_size, at_least=1, at_most=2**30)
    return _load(kv_swa_index_offset_len, window_size, swa_block_size, None)


def get_fused_dflash_get_input(
    slot_mapping_swa: torch.Tensor,
    positions: torch.Tensor,
    ftp: torch.Tensor,
    last_valid_offset: torch.Tensor,
    swa_block_size: int,
    dflash_block_size: int,
    window_size: int,
    has_valid_token_mask: bool = False,
    has_gate_force_random: bool = False,
    input_ids_dtype: torch.dtype = torch.int32,
) -> Draft:
    """What the draft model is fed after verification: D rows a request, at positions ap+1 .. ap+D.

    ap = positions[ftp] + last_valid_offset is the last accepted position. Every draft row of a request sees the same
    keys: the window that ends in ap and the D rows themselves, in the ring of its state slot.

    Args:
        slot_mapping_swa, positions: [Q] int32: ring slot and position of the target's rows.
        ftp: [R] int32: the request's first row; negative (or >= Q) is a padding request.
        last_valid_offset: [R] int32: accepted drafts.
        swa_block_size: rows of a ring. dflash_block_size: D, 1 to 32. window_size: keys up to and with ap.
        has_valid_token_mask, has_gate_force_random: whether these two are made.
        input_ids_dtype: int32 or int64.

    Returns:
        ring slots [R*D] int32 (padding: -1), positions [R*D] int32 (padding: 0), input ids [R*D] (0), valid mask and
        force-random [R*D] bool or None (True for requests; False), key indices [R*D, window + D rounded up to 64]
        int32 (-1: no key).

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("get_fused_dflash_get_input")
    check.tensor("slot_mapping_swa", slot_mapping_swa, torch.int32, ("Q",), rows="contiguous")
    check.tensor("positions", positions, torch.int32, ("Q",), rows="contiguous")
    check.tensor("ftp", ftp, torch.int32, ("R",), rows="contiguous")
    check.tensor("last_valid_offset", last_valid_offset, torch.int32, ("R",), rows="contiguous")
    check.whole_number("swa_block_size", swa_block_size, at_least=1, at_most=2**30)
    check.whole_number("dflash_block_size", dflash_block_size, at_least=1, at_most=MAX_DFLASH_BLOCK_SIZE)
    check.whole_number("window_size", window_size, at_least=1, at_most=2**30)
    check.one_of("input_ids_dtype", input_ids_dtype, (torch.int32, torch.int64))
    rows, kv_len = check.size("R"), window_size + dflash_block_size
    padded = -(-kv_len // 64) * 64

    def made(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((rows, dflash_block_size), dtype=dtype, device=ftp.device)

    slots, places, ids = made(torch.int32), made(torch.int32), made(input_ids_dtype)
    valid = made(torch.bool) if has_valid_token_mask else None
    random = made(torch.bool) if has_gate_force_random else None
    keys = torch.empty((rows * dflash_block_size, padded), dtype=torch.int32, device=ftp.device)
    parameters = (swa_block_size, padded, has_valid_token_mask, has_gate_force_random)
    inputs = (slot_mapping_swa, positions, ftp, last_valid_offset)
    factory("get_fused_dflash_get_input_tl")(*parameters)(
        *inputs, slots, places, ids, valid, random, keys, kv_len, window_size
    )
    flat_valid, flat_random = (None if mask is None else mask.view(-1) for mask in (valid, random))
    return slots.view(-1), places.view(-1), ids.view(-1), flat_valid, flat_random, keys


def _load(offset_len: torch.Tensor, width: int, block_size: int, tables: torch.Tensor | None) -> torch.Tensor:
    out = torch.empty((offset_len.shape[0], width), dtype=torch.int32, device=offset_len.device)
    factory("load_kv_index_tl")(width, block_size, has_block_tables=tables is not None)(offset_len, out, tables)
    return out
