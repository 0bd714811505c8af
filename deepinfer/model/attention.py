"""Attention, with the compressor and the indexer that feed it (model_spec 3.3 to 3.5)."""

from __future__ import annotations

import torch

from deepinfer.cache.layout import index_format, main_format
from deepinfer.cache.pool import Caches
from deepinfer.config import ModelConfig
from deepinfer.model import weights
from deepinfer.model.access import Access, Queries, store
from deepinfer.ops.activation import quantize_fp4
from deepinfer.ops.fused_transform import NormArgs
from deepinfer.ops.hyper import HyperStep
from deepinfer.ops.linear import bf16_linear
from deepinfer.ops.rotary import rotate


class Attention:
    """One layer's attention. rope: float32 [positions, 64], the layer's table."""

    def __init__(self, config: ModelConfig, layer: int, own: weights.Layer, rope: torch.Tensor) -> None:
        self.config, self.layer, self.own, self.rope = config, layer, own, rope

    def __call__(
        self, step: HyperStep, access: Access, forced: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sub-layer's output bf16 [n, hidden], and what an index source chose, int32 [n, topk].

        forced: entries in place of an index source's own choice. The layer's entries must be complete: `compress`.
        """
        config, own, shape = self.config, self.own.attention, self.config.attention
        rank, heads = shape.q_rank, shape.heads * shape.head_dim
        entered = own.enter.of_step(step)
        projected = own.heads.of_norm(entered[:, :rank], own.q_norm, config.rms_eps)
        q = self._turned(projected[:, :heads], shape.heads, access)
        access.window(self.layer, entered[:, rank:], NormArgs(own.kv_norm, config.rms_eps), self.rope)
        entries = None
        if self.own.index_weights is not None:
            entries = forced
            if forced is None or self.layer == config.indexer.candidate_source:  # its blocks are needed all the same
                turned = self._turned(projected[:, heads:], config.indexer.heads, access)
                found = Queries(*quantize_fp4(turned), bf16_linear(step.y, self.own.index_weights))
                chosen = access.choose(self.layer, found)
                entries = chosen if forced is None else forced
            assert entries is not None
            access.use(self.layer, entries)
        o = access.attend(self.layer, q, own.sink, shape.head_dim**-0.5)
        return own.leave.of_rows(own.groups(o, access.positions, self.rope)), entries

    def _turned(self, columns: torch.Tensor, heads: int, access: Access) -> torch.Tensor:
        """Columns of a product as heads [n, heads, d], contiguous and rotated; in place where they are all of it."""
        x = columns.view(len(columns), heads, columns.shape[1] // heads)
        return rotate(x, access.positions, self.rope, out=x if x.is_contiguous() else None)

    def compress(self, y: torch.Tensor, access: Access, caches: Caches) -> None:
        """Store the entries and index keys that the rows y [n, hidden] complete, where the layer is their source."""
        config, own, layer = self.config, self.own, self.layer
        if own.compressor is None:
            return
        dtype = torch.float32 if config.ratios[layer] > 1 else torch.bfloat16
        projected = bf16_linear(y, own.compressor.project, out_dtype=dtype)
        latents, positions, places = access.compress(layer, projected)
        before_rope = torch.empty_like(latents)
        gain = NormArgs(own.compressor.norm, config.rms_eps)
        form = main_format(config)
        store(latents, gain, positions, self.rope, caches.main(layer), form, places, before_rope, "norm")
        if own.index_keys is not None:
            keys = bf16_linear(before_rope, own.index_keys.project)
            gain = NormArgs(own.index_keys.norm, config.rms_eps)
            store(keys, gain, positions, self.rope, caches.index_keys(layer), index_format(config), places)
