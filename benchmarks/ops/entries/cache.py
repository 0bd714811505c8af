"""KV caches, the compressor's states, and the pools beside them."""

from __future__ import annotations

import torch

from benchmarks.ops.entry import Entry, Inputs, Make, Work, reads, size, work, writes
from benchmarks.ops.model import BLOCK_SIZE, DECODE_ROWS, DRAFTS, HEAD_DIM, SWA_BLOCK, VOCAB
from deepinfer.ops.formats import V41_FORMAT, V41_FP4_FORMAT, KVCacheFormat, alloc_kv_cache, split_kv_cache

BF16, F32 = torch.bfloat16, torch.float32
LAYERS = 43
"""Of the model and the draft model, each with a ring of the window's records."""


def _store(rows: int, inputs: Inputs) -> Work:
    """The window's records in prefill."""
    kv = inputs.normal(rows, HEAD_DIM)
    blocks = -(-2 * rows // SWA_BLOCK)
    cache = split_kv_cache(alloc_kv_cache(V41_FORMAT, blocks, SWA_BLOCK, inputs.device), V41_FORMAT)
    slots = inputs.distinct(rows, blocks * SWA_BLOCK)
    arguments = [
        *reads(kv=kv),
        *writes(kv_cache_value=cache.quantized_data, kv_cache_sf=cache.sf_data),
        *reads(slot_mapping=slots),
    ]
    moved = size(kv, slots) + rows * V41_FORMAT.bytes_per_token
    return work(arguments, (V41_FORMAT, SWA_BLOCK), moved=moved)


def _load(layout: KVCacheFormat) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        count = -(-rows // BLOCK_SIZE)
        pool = alloc_kv_cache(layout, 2 * count, BLOCK_SIZE, inputs.device)
        pool.zero_()
        cache = split_kv_cache(pool, layout)
        values, scales = cache.quantized_data, cache.sf_data
        assert values is not None and scales is not None  # a quantised format has both
        begin = inputs.range(count, BLOCK_SIZE)
        end = (rows - begin).clamp(max=BLOCK_SIZE)
        segments = torch.stack([inputs.distinct(count, 2 * count), torch.zeros_like(begin), end, begin], 1)
        kv = inputs.empty(rows, layout.elements, dtype=BF16)
        strides = [0, 0, 0]
        if layout.quantized_dtype == "e2m1":
            strides = [2 * values.stride(0), 2 * values.stride(1), scales.stride(1)]
        arguments = reads(load_segments=segments.int().contiguous()) + writes(kv=kv, kv_sf=kv)
        arguments += reads(kv_cache_value=values, kv_cache_sf=scales)
        moved = size(kv, segments) + rows * layout.bytes_per_token
        return work(arguments, (layout, BLOCK_SIZE, *strides), moved=moved)

    return make


def _compress_prefill(ratio: int) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        """One prompt from its first token."""
        score, latent = (inputs.normal(rows, HEAD_DIM, dtype=F32) for _ in range(2))
        state = inputs.empty(4, SWA_BLOCK, 2, HEAD_DIM, dtype=F32)
        count = max(1, rows // ratio)
        one, starts = inputs.full(1, 1), inputs.range(2)
        arguments = [
            *reads(score=score, latent=latent),
            *writes(state_cache=state),
            *reads(state_block_idx=one, compressed_batch_mapping=inputs.full(0, count)),
            *reads(cu_seqlens_q=starts * rows, cu_seqlens_k=starts * rows, cu_compressed_seqlens_q=starts * count),
            *reads(mirror_cp_reverse_index=None),
            *writes(kv_compressed=inputs.empty(count, HEAD_DIM, dtype=BF16)),
        ]
        kept = min(rows, SWA_BLOCK) * 2 * HEAD_DIM * 4
        # Alone in its window, a token needs no score but where it is kept.
        tokens = size(score, latent) if ratio > 1 else size(latent) + kept // 2
        moved = tokens + kept + count * HEAD_DIM * 2
        return work(arguments, (HEAD_DIM, ratio, False), moved=moved)

    return make


def _compress_decode(rows: int, inputs: Inputs) -> Work:
    score, latent = (inputs.normal(rows, HEAD_DIM, dtype=F32) for _ in range(2))
    state = inputs.empty(rows, SWA_BLOCK, 2, HEAD_DIM, dtype=F32)
    arguments = [
        *reads(score=score, latent=latent),
        *writes(state_cache=state),
        *reads(state_block_idx=inputs.range(rows), context_lens=inputs.integers(1, 1000, rows)),
        *writes(kv_compressed=inputs.empty(rows, HEAD_DIM, dtype=BF16)),
    ]
    written = 2 * size(score)  # the ring's entry
    older = size(score)  # of every second row: the entry before it
    return work(arguments, (HEAD_DIM, 2), moved=2 * size(score) + written + older + rows * HEAD_DIM * 2)


def _state(load: bool) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        """rows: state slots, one call each in the engine; here as many layers."""
        width, stored = V41_FORMAT.bytes_per_token, 2 * SWA_BLOCK
        shapes = ((LAYERS * rows, SWA_BLOCK, width), (LAYERS * rows, stored, width))
        tensor, cache = (inputs.integers(0, 256, *shape, dtype=torch.uint8) for shape in shapes)
        first, second = (reads, writes) if load else (writes, reads)
        arguments = first(state_tensor=tensor) + second(state_cache=cache) + reads(last_hit_position=500)
        return work(arguments, (stored, SWA_BLOCK, LAYERS * rows, width), moved=2 * size(tensor))

    return make


def _mtp_info(width: int, has_index: bool) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        pool = (rows + 1) * DRAFTS
        logprobs = inputs.normal(rows, DRAFTS, width, dtype=F32)
        index = inputs.integers(0, VOCAB, rows, DRAFTS, width) if has_index else None
        arguments = [
            *reads(write_slots=inputs.range(rows) + 1, token_ids=inputs.integers(0, VOCAB, rows, DRAFTS)),
            *reads(logprobs=logprobs, logprobs_index=index, confidence=inputs.uniform(rows, DRAFTS)),
            *writes(token_ids_pool=inputs.empty(pool), logprobs_pool=inputs.empty(pool, width, dtype=F32)),
            *writes(logprobs_index_pool=inputs.empty(pool, width) if has_index else None),
            *writes(confidence_pool=inputs.empty(pool, dtype=F32)),
        ]
        return work(arguments, (DRAFTS, width, has_index, True), moved=2 * size(logprobs, index))

    return make


ENTRIES = [
    Entry("store_kv_cache_tl", "swa", _store, copy_bound=True),
    Entry("load_paged_kv_cache_tl", "fp8", _load(V41_FORMAT), copy_bound=True),
    Entry("load_paged_kv_cache_tl", "fp4", _load(V41_FP4_FORMAT), copy_bound=True),
    Entry("compress_and_update_state_prefill_tl", "ratio-2", _compress_prefill(2), copy_bound=True),
    Entry("compress_and_update_state_prefill_tl", "ratio-1", _compress_prefill(1), copy_bound=True),
    Entry("compress_and_update_state_decode_tl", "ratio-2", _compress_decode, (*DECODE_ROWS, 4096)),
    Entry("select_state_slice_tl", "swa", _state(False), (1, 8)),
    Entry("load_state_to_cache_tl", "swa", _state(True), (1, 8)),
    Entry("store_mtp_info_tl", "full", _mtp_info(VOCAB, False), DECODE_ROWS),
    Entry("store_mtp_info_tl", "top-1024", _mtp_info(1024, True), (*DECODE_ROWS, 4096)),
]
