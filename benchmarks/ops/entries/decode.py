"""The metadata of a decode step, and what is prepared before the step before it has ended."""

from __future__ import annotations

import torch

from benchmarks.ops.entries.steps import step
from benchmarks.ops.entry import Entry, Inputs, Work, reads, size, work, writes
from benchmarks.ops.model import (
    BLOCK_SIZE,
    COMPRESSED_VOCAB,
    CONTEXT,
    DECODE_ROWS,
    DRAFTS,
    NGRAM,
    RATIOS,
    SWA_BLOCK,
    VOCAB,
    WINDOW,
)

BOOL = torch.bool
LONGEST = DRAFTS + 1
BLOCKS = CONTEXT // BLOCK_SIZE
ROWS = (*DECODE_ROWS, 4096)


def _metadata(rows: int, inputs: Inputs) -> Work:
    one = step(rows, inputs)
    r, count = one.requests, len(RATIOS)
    arguments = [
        *reads(seqlens_q=one.lengths, seqlens_k=one.lengths + inputs.integers(0, CONTEXT - LONGEST, r)),
        *reads(cu_seqlens_q=one.ends, block_tables_in=inputs.integers(0, 100_000, r * BLOCKS)),
        *reads(block_tables_offsets=inputs.range(r + 1, BLOCKS), state_block_idx_in=inputs.range(r) + 1),
        *reads(is_placeholder=inputs.full(False, r, dtype=BOOL)),
        *writes(positions=inputs.empty(rows), valid_token_mask=inputs.empty(rows, dtype=BOOL)),
        *writes(gate_force_random=inputs.empty(rows, dtype=BOOL), fix_routing_mask=inputs.empty(rows, dtype=BOOL)),
        *writes(context_lens=inputs.empty(rows), klen=inputs.empty(count, rows)),
        *writes(kv_ca_index_offset_len=inputs.empty(1, rows, 2), kv_swa_index_offset_len=inputs.empty(rows, 2)),
        *writes(slot_mapping_store_swa=inputs.empty(rows), query_indices=inputs.empty(rows)),
        *writes(state_block_idx_out=inputs.empty(rows), positions_c=inputs.empty(count, rows)),
        *writes(slot_mapping_store_ca=inputs.empty(count, rows)),
    ]
    parameters = (LONGEST, BLOCKS, WINDOW, SWA_BLOCK, BLOCK_SIZE, False, RATIOS, (), RATIOS)
    tables = r * BLOCKS * 4  # of which a row reads an entry or two
    moved = size(*(one.value for one in arguments)) - tables + rows * 4 * count
    return work(arguments, parameters, moved=moved)


def _block_tables(rows: int, inputs: Inputs) -> Work:
    one = step(rows, inputs)
    r, out = one.requests, inputs.empty(rows, BLOCKS)
    arguments = [
        *reads(seqlens_q=one.lengths, cu_seqlens_q=one.ends),
        *reads(block_tables_in=inputs.integers(0, 100_000, r * BLOCKS)),
        *reads(block_tables_offsets=inputs.range(r + 1, BLOCKS)),
        *writes(block_tables_out=out),
    ]
    return work(arguments, (LONGEST, BLOCKS))


def _remapped(requests: int, inputs: Inputs) -> torch.Tensor:
    """Nine of ten requests were in the step before, in another order."""
    remap = inputs.distinct(requests, requests)
    remap[9::10] = -1
    return remap


def _seqlens_k(rows: int, inputs: Inputs) -> Work:
    arguments = [
        *writes(seqlens_k=inputs.integers(10, 1000, rows)),
        *reads(seqlens_q=inputs.full(LONGEST, rows), remap=_remapped(rows, inputs)),
        *reads(prev_num_accepted_tokens=inputs.integers(0, LONGEST, rows)),
    ]
    return work(arguments, (DRAFTS,), moved=rows * 4 * 5)


def _input_ids(rows: int, inputs: Inputs) -> Work:
    one = step(rows, inputs)
    r = one.requests
    arguments = [
        *reads(fresh_tokens=inputs.integers(0, VOCAB, r, LONGEST)),
        *reads(prev_sampled_token_ids=inputs.integers(0, VOCAB, r)),
        *reads(prev_predict_token_ids=inputs.integers(0, VOCAB, r, DRAFTS), remap=_remapped(r, inputs)),
        *reads(seqlens_q=one.lengths, cu_seqlens_q=one.ends),
        *writes(out_input_ids=inputs.empty(rows)),
    ]
    return work(arguments, (LONGEST,), moved=2 * rows * 4 + 3 * r * 4)


def _engram(rows: int, inputs: Inputs) -> Work:
    one = step(rows, inputs)
    r, window = one.requests, DRAFTS + NGRAM - 1
    arguments = [
        *reads(win_compressed=inputs.integers(0, COMPRESSED_VOCAB, r, window)),
        *reads(curr_fresh=inputs.integers(0, COMPRESSED_VOCAB, r, LONGEST)),
        *reads(prev_sampled_token_ids=inputs.integers(0, VOCAB, r)),
        *reads(prev_predict_token_ids=inputs.integers(0, VOCAB, r, DRAFTS)),
        *reads(prev_num_accepted_tokens=inputs.integers(0, LONGEST, r), remap=_remapped(r, inputs)),
        *reads(lookup_table=inputs.integers(0, COMPRESSED_VOCAB, VOCAB)),
        *reads(seqlens_q=one.lengths, cu_seqlens_q=one.ends),
        *writes(out_ngram_token_ids=inputs.empty(rows, NGRAM)),
    ]
    return work(arguments, (LONGEST, NGRAM, 2, -1), moved=rows * 4 * (NGRAM + 2) + r * 4 * (NGRAM + 4))


def _varlen(rows: int, inputs: Inputs) -> Work:
    arguments = [
        *reads(remap=_remapped(rows, inputs), prev_confidence_rates=inputs.uniform(rows, DRAFTS)),
        *writes(cum_rates=inputs.empty(rows, DRAFTS, dtype=torch.float32), seqlens_q=inputs.empty(rows)),
        *reads(total_q=rows * 3),
    ]
    return work(arguments, (DRAFTS,))


def _copy(rows: int, inputs: Inputs) -> Work:
    """Three of four requests are real; the graph's size makes up the rest."""
    names = {
        "first_token_positions": torch.int32, "last_valid_offset": torch.int32, "golden_tokens": torch.int32,
        "sample_positions": torch.int32, "temperatures": torch.float32, "top_ps": torch.float32,
        "top_ks": torch.int32, "seq_seeds": torch.uint64, "mtp_info_write_slots": torch.int32,
    }  # fmt: skip
    real = max(1, rows * 3 // 4)

    def group(count: int) -> dict[str, torch.Tensor]:
        return {name: inputs.integers(0, 100, count, dtype=torch.int64).to(dtype) for name, dtype in names.items()}

    arguments = reads(**{f"{name}_src": value for name, value in group(real).items()})
    arguments += reads(**{f"{name}_padding": value for name, value in group(rows - real).items()})
    arguments += writes(**{f"{name}_dst": value for name, value in group(rows).items()})
    return work(arguments, (True,))


ENTRIES = [
    Entry("prepare_v4_decode_metadata_tl", "decode", _metadata, ROWS, metadata=True),
    Entry("copy_block_tables_tl", "decode", _block_tables, ROWS, metadata=True),
    Entry("compute_seqlens_k_zos_tl", "requests", _seqlens_k, ROWS, metadata=True),
    Entry("gather_input_ids_zos_tl", "decode", _input_ids, ROWS, metadata=True),
    Entry("gather_engram_tokens_zos_tl", "decode", _engram, ROWS, metadata=True),
    Entry("compute_seqlens_q_by_confidence_rates_tl", "requests", _varlen, (*DECODE_ROWS, 1024), metadata=True),
    Entry("copy_dflash_decode_input_tl", "requests", _copy, (*DECODE_ROWS, 1024), metadata=True),
]
