"""The caches as a decode step sees them: keys are read where they lie (model_spec 3.7).

Nothing here waits for the device, and no shape depends on data: a step can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch

from deepinfer.cache.layout import ring_format
from deepinfer.cache.pool import Caches
from deepinfer.config import ModelConfig
from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.model.access import Completed, Queries, store
from deepinfer.model.batch import Batch
from deepinfer.model.prefill import window_columns
from deepinfer.ops.candidate_blocks import get_candidate_compact_lens, restore_candidate_indices_inplace
from deepinfer.ops.compress import compress_and_update_state_decode
from deepinfer.ops.flash_mla_utils import convert_kv_index
from deepinfer.ops.fused_transform import NormArgs
from deepinfer.ops.get_kv_index import get_kv_swa_index_decode
from deepinfer.ops.indexer import paged_candidate_index_logits, paged_index_logits
from deepinfer.ops.prepare_decode_metadata import prepare_v4_decode_metadata
from deepinfer.ops.selection import block_maxima, select_topk
from deepinfer.ops.sparse_mla import sparse_attention_decode


class Decode:
    """Access of a decode step; see `access.Access`."""

    def __init__(self, config: ModelConfig, caches: Caches, batch: Batch) -> None:
        self.config, self.caches = config, caches
        self.ratios = tuple(sorted(set(config.ratios) - {0}))
        self.most_rows = max(batch.counts)
        n, columns, device = len(batch), batch.block_tables.shape[1], batch.token_ids.device

        def ints(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        def flags() -> torch.Tensor:
            return torch.empty(n, dtype=torch.bool, device=device)

        self.positions, self.lengths, self.ring_places, self.slots = ints(n), ints(n), ints(n), ints(n)
        self.valid: torch.Tensor | None = flags()
        self.visible, self.tables = ints(len(self.ratios), n), ints(n, columns)
        self.entry_positions, self.entry_places = ints(len(self.ratios), n), ints(len(self.ratios), n)
        window = ints(n, 2)
        begins = torch.arange(len(batch.counts) + 1, dtype=torch.int32, device=device) * columns
        prepare_v4_decode_metadata(
            *(batch.query_lens, batch.key_lens, batch.row_ends, batch.block_tables.view(-1), begins, batch.slots),
            *(batch.padding, self.positions, self.valid, flags(), flags(), self.lengths, self.visible),
            *(ints(1, n, 2), window, self.ring_places, ints(n), self.slots, self.tables),
            *(self.entry_positions, self.entry_places),
            max_seqlen_q=self.most_rows,
            max_num_blocks=columns,
            window_size=config.attention.window,
            swa_block_size=caches.ring_rows,
            block_size=BLOCK_TOKENS,
            ca_ratios=self.ratios,
            dense_ratios=(),
            sparse_ratios=self.ratios,
        )
        self.window_places = get_kv_swa_index_decode(window, window_columns(config), caches.ring_rows)
        self.width = columns * BLOCK_TOKENS
        self._blocks: torch.Tensor | None = None
        self._entry_places: torch.Tensor | None = None

    def compress(self, layer: int, projected: torch.Tensor) -> Completed:
        ratio = self.config.ratios[layer]
        latents = projected
        if ratio > 1:
            score, latent = projected.chunk(2, -1)
            latents = compress_and_update_state_decode(
                score, latent, self.caches.compressor(layer), self.slots, self.lengths, self.most_rows, ratio
            )
        at = self.ratios.index(ratio)
        return Completed(latents, self.entry_positions[at], self.entry_places[at])

    def window(self, layer: int, kv: torch.Tensor, norm: NormArgs, rope: torch.Tensor) -> None:
        store(kv, norm, self.positions, rope, self.caches.ring(layer), ring_format(self.config), self.ring_places)

    def choose(self, layer: int, queries: Queries) -> torch.Tensor:
        indexer, ratio = self.config.indexer, self.config.ratios[layer]
        own = (*queries, self.caches.index_keys(layer), self.tables)
        lengths, width = self.visible[self.ratios.index(ratio)], self.width // ratio
        within = indexer.candidate_source is not None and layer >= indexer.candidate_source
        limited = within and width > indexer.candidate_topk * indexer.candidate_block
        if not limited or layer == indexer.candidate_source:
            logits = paged_index_logits(*own, lengths, width)
            if limited:
                maxima, counts = block_maxima(logits, lengths, indexer.candidate_block)
                self._blocks = select_topk(maxima, counts, indexer.candidate_topk)
            return select_topk(logits, lengths, indexer.topk)
        assert self._blocks is not None
        logits = paged_candidate_index_logits(*own, self._blocks, indexer.candidate_block, lengths)
        compact = get_candidate_compact_lens(self._blocks, lengths, indexer.candidate_block)
        columns = select_topk(logits, compact, indexer.topk)
        restore_candidate_indices_inplace(columns, self._blocks, indexer.candidate_block)
        return columns

    def use(self, layer: int, entries: torch.Tensor) -> None:
        ratio = self.config.ratios[layer]
        placed = entries[:, None].clone()
        lengths = self.visible[self.ratios.index(ratio)]
        convert_kv_index(placed, BLOCK_TOKENS // ratio, lengths[:, None], self.tables)
        self._entry_places = placed[:, 0]

    def attend(self, layer: int, q: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
        cache, places = None, None
        if self.config.ratios[layer]:
            cache, places = self.caches.main(layer), self._entry_places
        ring = self.caches.ring(layer)
        return sparse_attention_decode(q, ring, self.window_places, cache, places, sink, scale)
