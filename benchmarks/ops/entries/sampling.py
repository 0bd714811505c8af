"""The sampler: from logits to accepted tokens."""

from __future__ import annotations

import torch

from benchmarks.ops.entries.steps import step
from benchmarks.ops.entry import Entry, Inputs, Make, Work, reads, size, work, writes
from benchmarks.ops.model import DECODE_ROWS, DRAFTS, EVERY_ROWS, VOCAB

F32, BOOL, U64 = torch.float32, torch.bool, torch.uint64
WIDE_ROWS = (*DECODE_ROWS, 4096)
FORCED = 1024
"""Width of the top-k space that force_topk samples in."""


def _seeds(rows: int, inputs: Inputs) -> torch.Tensor:
    return inputs.integers(0, 2**62, rows, dtype=torch.int64).view(U64)


def _fused_sample(top_p: float, top_k: int, verify: bool) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        """verify: all rows but the last of each request have a draft, and the draft's distribution is read too."""
        logits, logprobs = inputs.normal(rows, VOCAB, dtype=F32), inputs.empty(rows, VOCAB, dtype=F32)
        pool = logits
        if verify:
            pool = torch.log_softmax(inputs.normal(rows, VOCAB, dtype=F32), 1)
        drafted = step(rows, inputs).verify if verify else None
        arguments = [
            *reads(logits=logits, temperatures=inputs.full(1.0, rows, dtype=F32)),
            *reads(top_p=inputs.full(top_p, rows, dtype=F32), top_k=inputs.full(top_k, rows)),
            *reads(sample_positions=inputs.range(rows), seq_seeds=_seeds(rows, inputs), is_verify=drafted),
            *writes(logprobs=logprobs, candidate_token_ids=inputs.empty(rows)),
            *reads(last_nextn_token_logprobs=pool, mtp_info_read_rows=inputs.range(rows) if verify else None),
            *reads(last_next_n_token_ids=inputs.integers(0, VOCAB, rows) if verify else None),
            *writes(accept_result_verify=inputs.empty(rows, dtype=BOOL) if verify else None),
            *writes(draft_selected_logprobs=inputs.empty(rows, dtype=F32) if verify else None),
            *writes(accept_probs=inputs.empty(rows, dtype=F32) if verify else None),
            *reads(seed_offset=0),
            *writes(lse_workspace=inputs.empty(rows, 2, dtype=F32)),
        ]
        moved = size(logits, logprobs)
        if drafted is not None:
            moved += rows * DRAFTS // (DRAFTS + 1) * VOCAB * 4
        return work(arguments, (VOCAB, True, verify), moved=moved)

    return make


def _random(rows: int, inputs: Inputs) -> Work:
    probs = torch.softmax(inputs.normal(rows, VOCAB, dtype=F32), 1) * (1 - 1e-5)
    arguments = reads(probs=probs, seq_seeds=_seeds(rows, inputs), sample_positions=inputs.range(rows))
    return work(arguments + writes(out=inputs.empty(rows)), (VOCAB, False), moved=size(probs))


def _smaller(rows: int, inputs: Inputs) -> Work:
    logprobs = torch.log_softmax(inputs.normal(rows, VOCAB, dtype=F32), 1)
    arguments = reads(logprobs=logprobs, sample_results=inputs.integers(0, VOCAB, rows))
    return work(arguments + writes(output=inputs.empty(rows, dtype=F32)), (VOCAB,), moved=size(logprobs))


def _bitmask(rows: int, inputs: Inputs) -> Work:
    """Half of the tokens are forbidden, so that every sector of the logits is written."""
    logits = inputs.normal(rows, VOCAB, dtype=F32)
    mask = inputs.integers(-(2**31), 2**31, rows, VOCAB // 32)
    arguments = writes(logits=logits) + reads(bitmask=mask, indices=inputs.range(rows), ftp=None, step=0)
    return work(arguments, (VOCAB, False), moved=size(logits, mask))


def _metadata(rows: int, inputs: Inputs) -> Work:
    one = step(rows, inputs)
    arguments = reads(ftp=one.first, seqlen_q=one.lengths)
    arguments += writes(row_to_req=inputs.empty(rows), local_step=inputs.empty(rows))
    return work(arguments + writes(is_verify=inputs.empty(rows, dtype=BOOL)), (DRAFTS + 1,))


def _expand(rows: int, inputs: Inputs) -> Work:
    one = step(rows, inputs)
    r = one.requests
    arguments = [
        *reads(temperatures=inputs.uniform(r), top_ps=inputs.uniform(r), top_ks=inputs.integers(1, 100, r)),
        *reads(sample_positions=inputs.integers(0, 1000, r), seq_seeds=_seeds(r, inputs)),
        *reads(row_to_req=one.request, local_step=one.local),
        *writes(temperatures_out=inputs.empty(rows, dtype=F32), top_ps_out=inputs.empty(rows, dtype=F32)),
        *writes(top_ks_out=inputs.empty(rows), sample_positions_out=inputs.empty(rows)),
        *writes(seq_seeds_out=inputs.empty(rows, dtype=torch.int64).view(U64)),
    ]
    return work(arguments)


def _lookup(mode: str) -> Make:
    def make(rows: int, inputs: Inputs) -> Work:
        by_key = mode == "by_key"
        key = inputs.range(FORCED).flip(0).expand(rows, FORCED).contiguous() if by_key else None
        value = inputs.normal(rows, FORCED, dtype=F32)
        query, out = inputs.integers(0, FORCED, rows, 1), inputs.empty(rows, 1, dtype=F32)
        arguments = reads(key=key, value=value, query=query) + writes(out=out)
        return work(arguments, (FORCED, mode, F32), moved=size(key, query, out) + 4 * rows)

    return make


def _remap(rows: int, inputs: Inputs) -> Work:
    """Draft and target have about half of their tokens in common."""
    target = inputs.range(FORCED).expand(rows, FORCED) * 3 + inputs.integers(0, VOCAB - 3 * FORCED, rows, 1)
    draft = target + inputs.integers(0, 2, rows, FORCED)
    arguments = [
        *reads(draft_topk_index=draft, draft_topk_logprobs=-inputs.uniform(rows, FORCED)),
        *reads(draft_token_ids_pool=target[:, 5].contiguous(), target_topk_index=target),
        *reads(read_rows=inputs.range(rows)),
        *writes(aligned_logprobs=inputs.empty(rows, FORCED, dtype=F32), draft_local_ids=inputs.empty(rows)),
        *writes(identity_rows=inputs.empty(rows)),
    ]
    return work(arguments, (FORCED, VOCAB))


def _accept(rows: int, inputs: Inputs) -> Work:
    one = step(rows, inputs)
    candidates = inputs.integers(0, VOCAB, rows)
    arguments = [
        *reads(raw_accept=inputs.uniform(rows) < 0.8, golden=candidates),
        *reads(draft_token_ids_pool=inputs.integers(0, VOCAB, rows), read_rows=inputs.range(rows)),
        *reads(candidate_token_ids=candidates, is_verify=one.verify, ftp=one.first, row_to_req=one.request),
        *writes(token_ids_out=inputs.empty(rows), accept_out=inputs.empty(rows, dtype=BOOL)),
        *writes(is_final_out=inputs.empty(rows, dtype=BOOL)),
    ]
    return work(arguments, (False,))


def _finalize(rows: int, inputs: Inputs) -> Work:
    """Half of the drafts of each request are accepted; no top log-probabilities are asked for."""
    one = step(rows, inputs)
    r, ends = one.requests, one.lengths[one.request.long()] // 2
    arguments = [
        *reads(effective_accept=one.local < ends, is_final_input=one.local == ends),
        *reads(effective_token_ids=inputs.integers(0, VOCAB, rows), token_logprobs=-inputs.uniform(rows)),
        *reads(sum_smaller_probs=None, top_logprobs=None, top_token_ids=None),
        *reads(ftp=one.first, seqlen_q=one.lengths, row_to_req=one.request, is_verify=one.verify),
        *reads(accept_probs=inputs.uniform(rows), confidence_pool=inputs.uniform(rows)),
        *reads(mtp_info_read_rows=inputs.range(rows), stop_token_ids=inputs.integers(0, VOCAB, r, 2)),
        *writes(last_valid_offset=inputs.empty(r), num_generated_tokens=inputs.empty(DRAFTS + 1)),
        *writes(num_verified_tokens=inputs.empty(DRAFTS + 1), batch_confidence_error=inputs.empty(1, dtype=F32)),
        *writes(emitted_stop_token=inputs.empty(r, dtype=BOOL), sampled_token_ids=inputs.empty(r)),
        *writes(sampled_token_logprobs=inputs.empty(r, dtype=F32), sampled_sum_smaller_probs=None),
        *writes(sampled_top_logprobs=None, sampled_top_token_ids=None),
        *writes(verified_token_ids=inputs.empty(rows), verified_token_logprobs=inputs.empty(rows, dtype=F32)),
        *writes(verified_sum_smaller_probs=None, verified_top_logprobs=None, verified_top_token_ids=None),
    ]
    return work(arguments, (False, True, DRAFTS + 1, 2))


ENTRIES = [
    Entry("fused_sample_tl", "top-p-0.95-top-k-128", _fused_sample(0.95, 128, False), WIDE_ROWS),
    Entry("fused_sample_tl", "unfiltered", _fused_sample(1.0, -1, False), WIDE_ROWS),
    Entry("fused_sample_tl", "verify", _fused_sample(0.95, 128, True), DECODE_ROWS),
    Entry("random_sampling_tl", "full", _random, WIDE_ROWS),
    Entry("sum_smaller_probs_tl", "full", _smaller, WIDE_ROWS),
    Entry("apply_token_bitmask_by_step_inplace_tl", "half", _bitmask, WIDE_ROWS),
    Entry("prepare_verification_metadata_tl", "decode", _metadata, EVERY_ROWS, metadata=True),
    Entry("expand_sampling_params_tl", "decode", _expand, EVERY_ROWS, metadata=True),
    Entry("map_lookup_tl", "by-key-1024", _lookup("by_key")),
    Entry("map_lookup_tl", "by-index-1024", _lookup("by_index")),
    Entry("remap_draft_topk_tl", "top-1024", _remap, WIDE_ROWS),
    Entry("get_accept_result_tl", "decode", _accept, EVERY_ROWS, metadata=True),
    Entry("finalize_verification_tl", "decode", _finalize, EVERY_ROWS, metadata=True),
]
