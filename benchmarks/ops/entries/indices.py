"""Tables of key indices for attention, and the candidate blocks of the index."""

from __future__ import annotations

import torch

from benchmarks.ops.entry import Entry, Inputs, Make, Work, reads, size, work, writes
from benchmarks.ops.model import (
    BLOCK_SIZE,
    CANDIDATE_BLOCKS,
    CANDIDATE_SIZE,
    CONTEXT,
    DECODE_ROWS,
    DRAFTS,
    SWA_BLOCK,
    TOP_K,
    WINDOW,
)

BF16 = torch.bfloat16


def _kv_index(width: int, block: int, paged: bool) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        """Every row's length is the width; offsets lie anywhere."""
        offsets = inputs.integers(0, CONTEXT, rows)
        pairs = torch.stack([offsets, inputs.full(width, rows)], 1)
        table = inputs.integers(0, 100_000, (CONTEXT + width) // block + 1) if paged else None
        out = inputs.empty(rows, width)
        arguments = reads(kv_index_offset_len=pairs) + writes(kv_index=out) + reads(flatten_block_tables=table)
        return work(arguments, (width, block, paged))

    return make


def _draft_input(rows: int, inputs: Inputs) -> Work:
    """rows: requests."""
    kv_len = WINDOW + DRAFTS
    padded = -(-kv_len // 64) * 64
    query = rows * (DRAFTS + 1)
    positions = inputs.integers(0, CONTEXT, query)
    slots = inputs.range(query) // (DRAFTS + 1) * SWA_BLOCK + positions % SWA_BLOCK
    out = {
        "newx_slot_mapping_out": torch.int32,
        "positions_out": torch.int32,
        "input_ids_out": torch.int32,
        "valid_token_mask_out": torch.bool,
        "gate_force_random_out": torch.bool,
    }
    arguments = [
        *reads(slot_mapping_swa=slots, positions=positions, ftp=inputs.range(rows, DRAFTS + 1)),
        *reads(last_valid_offset=inputs.integers(0, DRAFTS + 1, rows)),
        *writes(**{name: inputs.empty(rows, DRAFTS, dtype=dtype) for name, dtype in out.items()}),
        *writes(kv_index_out=inputs.empty(rows * DRAFTS, padded)),
        *reads(kv_len=kv_len, window_size=WINDOW),
    ]
    return work(arguments, (SWA_BLOCK, padded, True, True))


def _convert(rows: int, inputs: Inputs) -> Work:
    """In place, again and again: the tables map into themselves, so that the indices stay in range."""
    block = BLOCK_SIZE // 2
    blocks = CONTEXT // BLOCK_SIZE
    index = inputs.integers(0, blocks * block, rows, 1, TOP_K)
    lens, tables = inputs.full(TOP_K, rows, 1), inputs.integers(0, blocks, rows, blocks)
    arguments = writes(topk_idxs=index) + reads(context_lens=lens, block_tables=tables)
    return work(arguments, (1, TOP_K, blocks, block), moved=2 * size(index) + size(lens, tables))


def _cat(rows: int, inputs: Inputs) -> Work:
    stride = -(-(WINDOW + TOP_K) // 4) * 4
    left, right = inputs.integers(0, CONTEXT, rows, WINDOW), inputs.integers(-1, CONTEXT, rows, TOP_K)
    out = inputs.empty(rows, stride)
    arguments = [
        *reads(kv_index=left, kv_ca_index=right),
        *writes(left=out[:, :WINDOW], right=out[:, WINDOW : WINDOW + TOP_K]),
        *reads(total_k_swa=1000, total_k=2000),
    ]
    return work(arguments, ("int32", WINDOW, TOP_K, stride))


def _swa(rows: int, inputs: Inputs) -> Work:
    starts, lengths = inputs.integers(0, CONTEXT, rows, 2), inputs.integers(0, WINDOW // 2, rows, 2)
    pivots = torch.stack([starts, lengths], 2).view(rows, 4)
    return work(reads(pivots=pivots) + writes(output=inputs.empty(rows, WINDOW)), (WINDOW,))


def _block_max(rows: int, inputs: Inputs) -> Work:
    logits = inputs.normal(rows, CONTEXT)
    scores = inputs.empty(rows, CONTEXT // CANDIDATE_SIZE, dtype=BF16)
    arguments = reads(logits=logits, valid_lens=inputs.full(CONTEXT, rows))
    arguments += writes(block_scores=scores, valid_blocks=inputs.empty(-(-rows // 4) * 4))
    return work(arguments, (CONTEXT, CANDIDATE_SIZE))


def _compact_lens(rows: int, inputs: Inputs) -> Work:
    blocks = inputs.integers(0, CONTEXT // CANDIDATE_SIZE, rows, CANDIDATE_BLOCKS)
    arguments = reads(candidate_blocks=blocks, valid_lens=inputs.full(CONTEXT, rows))
    return work(arguments + writes(compact_lens=inputs.empty(rows)), (CANDIDATE_BLOCKS, CANDIDATE_SIZE))


def _restore(rows: int, inputs: Inputs) -> Work:
    """In place, again and again: the blocks are such that the indices stay in range."""
    index = inputs.integers(0, CANDIDATE_BLOCKS * CANDIDATE_SIZE, rows, TOP_K)
    blocks = inputs.integers(0, CANDIDATE_BLOCKS, rows, CANDIDATE_BLOCKS)
    arguments = [
        *writes(compact_indices=index),
        *reads(candidate_blocks=blocks, output_idx_offset=inputs.full(0, rows)),
    ]
    parameters = (TOP_K, CANDIDATE_BLOCKS, CANDIDATE_SIZE, True)
    return work(arguments, parameters, moved=3 * size(index))  # read, written, and as many block numbers


ENTRIES = [
    Entry("load_kv_index_tl", "ring", _kv_index(WINDOW, SWA_BLOCK, False), copy_bound=True),
    Entry("load_kv_index_tl", "paged", _kv_index(4096, BLOCK_SIZE // 2, True), copy_bound=True),
    Entry("load_kv_index_tl", "contiguous", _kv_index(4096, 0, False), copy_bound=True),
    Entry("get_fused_dflash_get_input_tl", "draft", _draft_input, (*DECODE_ROWS, 4096), metadata=True),
    Entry("convert_kv_index_tl", "top-512", _convert),
    Entry("kv_index_cat_tl", "prefill", _cat, copy_bound=True),
    Entry("expand_swa_index_tl", "prefill", _swa, copy_bound=True),
    Entry("candidate_block_max_tl", "blocks-of-8", _block_max),
    Entry("get_candidate_compact_lens_tl", "blocks-of-8", _compact_lens),
    Entry("restore_candidate_indices_inplace_tl", "blocks-of-8", _restore),
]
