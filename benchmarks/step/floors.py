"""What a call cannot do without: bytes that have to move, each once, and operations of its products.

What is read by index counts as often as it differs: experts that rows were sent to, rows of a table, entries that
rows see. Of everything else each element of each tensor counts once. Figures are of the call's own data, so that they
have to be taken before it runs, and cost a wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.step.traffic import Floor, bytes_of, different, row_bytes, size, total

ROTATED_BYTES = 64 * 4
"""Of a position in a rotary table."""
Rule = Callable[..., Floor]


def floor(factory: str, parameters: Sequence[Any], arguments: Sequence[Any]) -> Floor:
    """The floor of a kernel's call. parameters: of its factory. arguments: of the kernel, in its order."""
    rule = _RULES.get(factory)
    if rule is not None:
        return rule(parameters, *arguments)
    return Floor(size(*arguments))


def _linear(_: Any, values: Any, scales: Any, weight: Any, weight_scales: Any, out: Any) -> Floor:
    """Of all rows by one weight, or by groups of columns, each by its own."""
    return Floor(size(values, scales, weight, weight_scales, out), 2 * len(values) * weight.numel())


def _bf16_linear(_: Any, x: Any, weight: Any, out: Any) -> Floor:
    return Floor(size(x, weight, out), 2 * len(x) * weight.numel())


def _expert_linear(
    _: Any, values: Any, scales: Any, rows: Any, offsets: Any, weight: Any, weight_scales: Any, out: Any
) -> Floor:
    counts = offsets.diff()
    experts, routed = int((counts > 0).sum()), int(offsets[-1])
    read = different(rows[:routed], len(values)) * (row_bytes(values) + row_bytes(scales))
    return Floor(
        read + experts * (row_bytes(weight) + row_bytes(weight_scales)) + size(rows, offsets, out),
        2 * routed * out.shape[1] * values.shape[1],
    )


def wide_expert_counts(ends: torch.Tensor, alignment: int) -> torch.Tensor:
    """How many rows each expert has, whose parts end there and begin at multiples of the alignment."""
    begins = torch.zeros_like(ends)
    begins[1:] = (ends[:-1] + alignment - 1) // alignment * alignment
    return ends - begins


def _wide_experts(
    parameters: Any, values: Any, scales: Any, weight: Any, weight_scales: Any, ends: Any, out: Any
) -> Floor:
    counts = wide_expert_counts(ends, parameters[0])
    experts, routed = int((counts > 0).sum()), int(counts.sum())
    moved = routed * (row_bytes(values) + 4 * scales.shape[1] + row_bytes(out))
    return Floor(
        moved + experts * (row_bytes(weight) + row_bytes(weight_scales)) + size(ends),
        2 * routed * out.shape[1] * values.shape[1],
    )


def _quantize_per128(_: Any, x: Any, choices: Any, topk: int, values: Any, scales: Any) -> Floor:
    if choices is None:
        return Floor(size(x, values, scales))
    written = int((choices >= 0).sum()) * (row_bytes(values) + 4 * scales.shape[1])
    return Floor(different(choices[choices >= 0] // topk, len(x)) * row_bytes(x) + written + size(choices))


def _swiglu_per128(_: Any, gate_up: Any, limit: float, weights: Any, choices: Any, values: Any, scales: Any) -> Floor:
    rows = len(gate_up) if choices is None else int((choices >= 0).sum())
    return Floor(rows * (row_bytes(gate_up) + row_bytes(values) + 4 * scales.shape[1]) + size(weights, choices))


def _combine(_: Any, shared: Any, routed: Any, order: Any, out: Any) -> Floor:
    return Floor(int((order >= 0).sum()) * row_bytes(routed) + size(shared, order, out))


def _gather(_: Any, table: Any, index: Any, out: Any) -> Floor:
    return Floor(different(index, len(table)) * row_bytes(table) + size(index, out))


def _engram_gather(_: Any, table: Any, scales: Any, rows: Any, *outputs: Any) -> Floor:
    return Floor(different(rows, len(table)) * (row_bytes(table) + row_bytes(scales)) + size(rows, *outputs))


def _load(_: Any, segments: Any, kv: Any, kv_sf: Any, cache: Any, cache_sf: Any) -> Floor:
    entries = total(segments[:, 2] - segments[:, 1], cache.shape[1])
    entry = size(cache[0, :1], cache_sf[0, :1])
    return Floor(entries * entry + size(segments, kv, kv_sf))


def _transform(
    _: Any, x: Any, weight: Any, positions: Any, cos: Any, sin: Any, out: Any, values: Any, scales: Any,
    cache: Any, cache_sf: Any, places: Any,
) -> Floor:  # fmt: skip
    moved = size(x, weight, positions, out, values, scales, places)
    if positions is not None and cos is not None:
        moved += different(positions, len(cos)) * (row_bytes(cos) + row_bytes(sin))
    if places is not None and cache is not None:
        stored = different(places, cache.shape[0] * cache.shape[1])
        moved += stored * size(cache[0, :1], cache_sf[0, :1])
    return Floor(moved)


def _rotate(_: Any, x: Any, positions: Any, table: Any, out: Any) -> Floor:
    moved = 2 * bytes_of(x) if out.data_ptr() != x.data_ptr() else 2 * bytes_of(x[..., -64:])
    return Floor(moved + size(positions) + different(positions, len(table)) * ROTATED_BYTES)


def _rotate_back(_: Any, o: Any, positions: Any, table: Any, values: Any, scales: Any) -> Floor:
    return Floor(size(o, positions, values, scales) + different(positions, len(table)) * ROTATED_BYTES)


def _attend_prefill(_: Any, q: Any, keys: Any, index: Any, sink: Any, out: Any) -> Floor:
    seen = int(((index >= 0) & (index < len(keys))).sum())
    moved = different(index, len(keys)) * row_bytes(keys) + size(q, index, sink, out)
    return Floor(moved, 4 * seen * q.shape[1] * q.shape[2])


def _attend_decode(_: Any, q: Any, ring: Any, window: Any, cache: Any, index: Any, sink: Any, out: Any) -> Floor:
    moved, seen = size(q, window, index, sink, out), 0
    for memory, own in ((ring, window), (cache, index)):
        if memory is None:
            continue
        places = memory.shape[0] * memory.shape[1]
        moved += different(own, places) * memory.shape[3]
        seen += int(((own >= 0) & (own < places)).sum())
    return Floor(moved, 4 * seen * q.shape[1] * q.shape[2])


def _products(q: Any, pairs: int) -> int:
    """Operations of so many pairs of a row's queries [n, h, 64 bytes] and a key."""
    return 2 * pairs * int(q.shape[1] * q.shape[2]) * 2


def _index_logits(
    _: Any, q: Any, scales: Any, weights: Any, keys: Any, key_scales: Any, starts: Any, lengths: Any, out: Any
) -> Floor:
    begins, own = torch.unique(starts, return_inverse=True)
    most = torch.zeros(len(begins), dtype=torch.int64, device=q.device)
    most.scatter_reduce_(0, own, lengths.long().clamp(0, out.shape[1]), "amax")
    moved = int(most.sum()) * (row_bytes(keys) + row_bytes(key_scales))
    return Floor(moved + size(q, scales, weights, starts, lengths, out), _products(q, total(lengths, out.shape[1])))


def _paged_index_logits(
    _: Any, q: Any, scales: Any, weights: Any, cache: Any, cache_sf: Any, tables: Any, lengths: Any, out: Any
) -> Floor:
    entries = cache.shape[1]
    first = torch.arange(tables.shape[1], device=q.device) * entries
    seen = (lengths.long().clamp(0, out.shape[1])[:, None] - first).clamp(0, entries)
    valid = (tables >= 0) & (tables < len(cache)) & (seen > 0)
    most = torch.zeros(len(cache), dtype=torch.int64, device=q.device)
    most.scatter_reduce_(0, tables[valid].long(), seen[valid], "amax")
    moved = int(most.sum()) * size(cache[0, :1], cache_sf[0, :1])
    return Floor(moved + size(q, scales, weights, tables, lengths, out), _products(q, total(lengths, out.shape[1])))


def _within(blocks: Any, size_: int, lengths: Any) -> torch.Tensor:
    """How many entries each candidate block of a row has: int64 [n, blocks]."""
    held = (lengths.long()[:, None] - blocks.long() * size_).clamp(0, size_)
    return torch.where(blocks >= 0, held, 0)


def _candidate_logits(
    parameters: Any, q: Any, scales: Any, weights: Any, keys: Any, key_scales: Any, starts: Any, blocks: Any,
    lengths: Any, out: Any,
) -> Floor:  # fmt: skip
    held = _within(blocks, parameters[1], lengths)
    begins = starts.long()[:, None] + blocks.long() * parameters[1]
    moved = _of_blocks(begins, held) * (row_bytes(keys) + row_bytes(key_scales))
    return Floor(moved + size(q, scales, weights, starts, blocks, lengths, out), _products(q, int(held.sum())))


def _paged_candidate_logits(
    parameters: Any, q: Any, scales: Any, weights: Any, cache: Any, cache_sf: Any, tables: Any, blocks: Any,
    lengths: Any, out: Any,
) -> Floor:  # fmt: skip
    entries = cache.shape[1]
    held = _within(blocks, parameters[1], lengths)
    begins = (blocks.long() * parameters[1]).clamp(0, tables.shape[1] * entries - 1)
    page = tables.long().gather(1, begins // entries)
    moved = _of_blocks(page * entries + begins % entries, torch.where(page >= 0, held, 0))
    return Floor(
        moved * size(cache[0, :1], cache_sf[0, :1]) + size(q, scales, weights, tables, blocks, lengths, out),
        _products(q, int(held.sum())),
    )


def _of_blocks(begins: torch.Tensor, held: torch.Tensor) -> int:
    """Entries of different blocks, by where they begin, each as long as the row that sees most of it sees it."""
    used = held > 0
    apart, own = torch.unique(begins[used], return_inverse=True)
    most = torch.zeros(len(apart), dtype=torch.int64, device=begins.device)
    return int(most.scatter_reduce_(0, own, held[used], "amax").sum())


def _select(_: Any, scores: Any, lengths: Any, columns: Any) -> Floor:
    return Floor(total(lengths, scores.shape[1]) * scores.element_size() + size(lengths, columns))


def _maxima(_: Any, logits: Any, lengths: Any, *outputs: Any) -> Floor:
    return Floor(total(lengths, logits.shape[1]) * logits.element_size() + size(lengths, *outputs))


def _compress_prefill(
    _: Any, score: Any, latent: Any, state: Any, slots: Any, mapping: Any, begins: Any, *others: Any
) -> Floor:
    """The state of the tokens that are stored; what is read of earlier ones is less than a row a sequence."""
    kept = total(begins.diff(), state.shape[1])
    return Floor(kept * row_bytes(state[0]) + size(score, latent, slots, mapping, begins, *others))


def _compress_decode(_: Any, score: Any, latent: Any, state: Any, *others: Any) -> Floor:
    return Floor(len(score) * row_bytes(state[0]) + size(score, latent, *others))


def _hyper_step(
    _: Any, trunk: Any, x: Any, post: Any, comb: Any, pre: Any, fn: Any, base: Any, scale: Any, norm: Any, made: Any,
    *outputs: Any,
) -> Floor:  # fmt: skip
    """A trunk that takes x is read and written, and is read alone without it; the coefficients are a product."""
    again = bytes_of(trunk) if x is not None and made.data_ptr() == trunk.data_ptr() else 0
    moved = size(trunk, x, post, comb, pre, fn, base, scale, norm, made, *outputs)
    return Floor(moved + again, 2 * len(trunk) * fn.numel())


def _in_place(_: Any, changed: Any, *others: Any) -> Floor:
    """What is changed in place is read and written."""
    same = any(isinstance(one, torch.Tensor) and one.data_ptr() == changed.data_ptr() for one in others)
    return Floor(size(changed, *others) + (bytes_of(changed) if same else 0))


def _changed(_: Any, changed: Any, *others: Any) -> Floor:
    return Floor(size(changed, *others) + bytes_of(changed))


_RULES: dict[str, Rule] = {
    "fp8_linear": _linear,
    "fp8_grouped_linear": _linear,
    "bf16_linear": _bf16_linear,
    "expert_linear": _expert_linear,
    "quantize_per128": _quantize_per128,
    "swiglu_per128": _swiglu_per128,
    "combine": _combine,
    "deep_gemm_linear": _linear,
    "deep_gemm_grouped": _linear,
    "deep_gemm_experts": _wide_experts,
    "gather_tl": _gather,
    "engram_gather": _engram_gather,
    "load_paged_kv_cache_tl": _load,
    "fused_norm_rope_hadamard_cast_store_kvcache_tl": _transform,
    "rotate": _rotate,
    "rotate_heads_quantize": _rotate_back,
    "sparse_attention_prefill": _attend_prefill,
    "sparse_attention_decode": _attend_decode,
    "index_logits": _index_logits,
    "paged_index_logits": _paged_index_logits,
    "candidate_index_logits": _candidate_logits,
    "paged_candidate_index_logits": _paged_candidate_logits,
    "select_topk": _select,
    "block_maxima": _maxima,
    "compress_and_update_state_prefill_tl": _compress_prefill,
    "compress_and_update_state_decode_tl": _compress_decode,
    "hyper_step": _hyper_step,
    "hyper_post": _in_place,
    "engram_gate": _in_place,
    "convert_kv_index_tl": _changed,
    "restore_candidate_indices_inplace_tl": _changed,
}
