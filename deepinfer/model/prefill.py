"""The caches as a prefill sees them: keys are gathered into one buffer a segment of layers (model_spec 3.7)."""

from __future__ import annotations

import torch

from deepinfer.cache.layout import index_format, main_format, ring_format
from deepinfer.cache.pool import Caches
from deepinfer.config import ModelConfig
from deepinfer.model.access import Completed, Queries, store
from deepinfer.model.batch import Batch
from deepinfer.model.prefill_plan import Plan, Rows
from deepinfer.ops.candidate_blocks import get_candidate_compact_lens, restore_candidate_indices_inplace
from deepinfer.ops.compress import compress_and_update_state_prefill
from deepinfer.ops.fused_transform import NormArgs
from deepinfer.ops.indexer import candidate_index_logits, index_logits
from deepinfer.ops.kv_index_cat import kv_index_cat
from deepinfer.ops.load_paged_kv_cache import load_paged_kv_cache
from deepinfer.ops.selection import block_maxima, select_topk
from deepinfer.ops.sparse_mla import sparse_attention_prefill
from deepinfer.ops.swa_index import expand_swa_index

MOST_SCORE_BYTES = 2**30
"""Of index logits at a time: rows are scored in parts, so that a long prompt needs no more."""
_WINDOW_MULTIPLE = 4


def window_columns(config: ModelConfig) -> int:
    """Columns of a row's window in lists of keys; the same in prefill and decode, as are the sums over them."""
    return -(-config.attention.window // _WINDOW_MULTIPLE) * _WINDOW_MULTIPLE


class Prefill:
    """Access of chunks of prompts; see `access.Access`."""

    def __init__(self, config: ModelConfig, caches: Caches, batch: Batch, plan: Plan) -> None:
        self.config, self.caches, self.batch, self.plan = config, caches, batch, plan
        self.valid: torch.Tensor | None = None
        self._keys: torch.Tensor | None = None
        self._index_keys: tuple[torch.Tensor, torch.Tensor] | None = None
        self._blocks: torch.Tensor | None = None
        self._go_on_with(plan.producers)

    def narrow(self) -> None:
        """From here on the rows are those of the consumers."""
        if self.rows is not self.plan.consumers:
            self._go_on_with(self.plan.consumers)

    def _go_on_with(self, rows: Rows) -> None:
        self.rows, self.positions = rows, rows.positions
        self._window = expand_swa_index(rows.pivots, window_columns(self.config))
        self._indices = self._window
        self._loaded: int | None = None
        self._index_loaded: int | None = None

    def compress(self, layer: int, projected: torch.Tensor) -> Completed:
        made = self.plan.entries[self.config.ratios[layer]]
        latents = projected
        if self.config.ratios[layer] > 1:
            score, latent = projected.chunk(2, -1)
            plan = self.plan
            bounds = (plan.query_begins, plan.key_begins, made.row_begins)
            latents = compress_and_update_state_prefill(
                *(score, latent, self.caches.compressor(layer), self.batch.slots, made.mapping),
                *(*bounds, self.config.ratios[layer]),
            )
        return Completed(latents, made.positions, made.places)

    def window(self, layer: int, kv: torch.Tensor, norm: NormArgs, rope: torch.Tensor) -> None:
        keys, rows, ring = self._buffer(layer), self.rows, self.caches.ring(layer)
        form = ring_format(self.config)
        if rows.history:
            load_paged_kv_cache(ring, rows.segments, rows.history, keys[: rows.history], layout=form)
        own = keys[rows.history : rows.history + len(kv)]
        store(kv, norm, rows.positions, rope, ring, form, rows.ring_places, own, "cast_back")

    def _buffer(self, layer: int) -> torch.Tensor:
        """Keys [history, the rows' own, all entries of all sequences], bf16; the entries are read once a segment."""
        source = self.config.kv_source(layer) if self.config.ratios[layer] else -1
        if self._keys is None or self._loaded != source:
            before = self.rows.history + len(self.positions)
            entries = self.plan.entries[self.config.ratios[layer]] if source >= 0 else None
            total = entries.total if entries is not None else 0
            shape = (before + total, self.config.attention.head_dim)
            self._keys = torch.empty(shape, dtype=torch.bfloat16, device=self.positions.device)
            if entries is not None and total:
                form = main_format(self.config)
                load_paged_kv_cache(self.caches.main(layer), entries.segments, total, self._keys[before:], layout=form)
            self._loaded = source
        return self._keys

    def _index_buffer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Index keys of all entries of all sequences: int8 [k, 64] and uint8 [k, 4]."""
        source = self.config.index_k_source(layer)
        if self._index_keys is None or self._index_loaded != source:
            entries = self.plan.entries[self.config.ratios[layer]]
            form = index_format(self.config)
            found = load_paged_kv_cache(self.caches.index_keys(layer), entries.segments, entries.total, layout=form)
            assert found.quantized_data is not None and found.sf_data is not None
            self._index_keys = found.quantized_data, found.sf_data.view(torch.uint8).view(-1, 4)
            self._index_loaded = source
        return self._index_keys

    def choose(self, layer: int, queries: Queries) -> torch.Tensor:
        n, topk = len(self.positions), self.config.indexer.topk
        entries = torch.empty((n, topk), dtype=torch.int32, device=self.positions.device)
        width = self.rows.longest[self.config.ratios[layer]]
        blocks = self._candidates(layer, width)
        step = max(1, MOST_SCORE_BYTES // (4 * max(width, 1)))
        for begin in range(0, n, step):
            part = slice(begin, begin + step)
            entries[part] = self._choose(layer, queries, part, width, blocks)
        return entries

    def _candidates(self, layer: int, width: int) -> torch.Tensor | None:
        """Where candidate blocks are to be written, or are read, int32 [n, blocks]; None where all are candidates."""
        indexer = self.config.indexer
        within = indexer.candidate_source is not None and layer >= indexer.candidate_source
        if not within or width <= indexer.candidate_topk * indexer.candidate_block:
            return None
        if layer == indexer.candidate_source:
            shape = (len(self.positions), indexer.candidate_topk)
            self._blocks = torch.empty(shape, dtype=torch.int32, device=self.positions.device)
        return self._blocks

    def _choose(
        self, layer: int, queries: Queries, part: slice, width: int, blocks: torch.Tensor | None
    ) -> torch.Tensor:
        indexer, ratio = self.config.indexer, self.config.ratios[layer]
        own = (queries.values[part], queries.scales[part], queries.weights[part], *self._index_buffer(layer))
        starts, lengths = self.rows.starts[ratio][part], self.rows.lengths[ratio][part]
        if blocks is None or layer == indexer.candidate_source:
            logits = index_logits(*own, starts, lengths, width)
            if blocks is not None:
                maxima, counts = block_maxima(logits, lengths, indexer.candidate_block)
                blocks[part] = select_topk(maxima, counts, indexer.candidate_topk)
            return select_topk(logits, lengths, indexer.topk)
        logits = candidate_index_logits(*own, starts, blocks[part], indexer.candidate_block, lengths)
        compact = get_candidate_compact_lens(blocks[part], lengths, indexer.candidate_block)
        columns = select_topk(logits, compact, indexer.topk)
        restore_candidate_indices_inplace(columns, blocks[part], indexer.candidate_block)
        return columns

    def use(self, layer: int, entries: torch.Tensor) -> None:
        starts = self.rows.starts[self.config.ratios[layer]]
        placed = torch.where(entries >= 0, entries + starts[:, None], -1)
        self._indices = kv_index_cat(self._window, placed, self.rows.history, len(self.positions))

    def attend(self, layer: int, q: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
        assert self._keys is not None
        indices = self._indices if self.config.ratios[layer] else self._window
        columns = window_columns(self.config)
        return sparse_attention_prefill(q, self._keys, indices, sink, scale, window=columns)
