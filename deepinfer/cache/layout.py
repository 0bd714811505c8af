"""Which byte of a paged block and of a state slot belongs to which layer (model_spec 4.1 to 4.3)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from deepinfer.config import ModelConfig
from deepinfer.config.constraints import BLOCK_TOKENS
from deepinfer.ops.formats import FP4_INDEX_KV_FORMAT, V41_FORMAT, V41_FP4_FORMAT, KVCacheFormat

SECTION_BYTES = 32
"""Sections of a block and rings of a slot begin at multiples of it."""
BACKTRACKING = 6
"""B: how many tokens a sequence may step back, by default (model_spec 4.3)."""

__all__ = ["BACKTRACKING", "BLOCK_TOKENS", "BlockLayout", "Section", "SlotLayout", "blocks_of"]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def blocks_of(tokens: int) -> int:
    """Blocks that a sequence of so many tokens needs."""
    return -(-tokens // BLOCK_TOKENS)


def main_format(config: ModelConfig) -> KVCacheFormat:
    """Format of compressed entries: 288 bytes in FP4, or 528 in FP8, at the real head_dim of 512."""
    form = V41_FP4_FORMAT if config.attention.fp4_cache else V41_FORMAT
    return dataclasses.replace(form, quantized_elements=config.attention.head_dim)


def index_format(config: ModelConfig) -> KVCacheFormat:
    """Format of index keys: 68 bytes at the real index_head_dim of 128; a block's values, then its scales."""
    return dataclasses.replace(FP4_INDEX_KV_FORMAT, quantized_elements=config.indexer.head_dim)


def ring_format(config: ModelConfig) -> KVCacheFormat:
    """Format of sliding-window keys: FP8, 528 bytes at the real head_dim."""
    return dataclasses.replace(V41_FORMAT, quantized_elements=config.attention.head_dim)


@dataclass(frozen=True)
class Section:
    """A layer's part of each block: `entries` records of `form`, `offset` bytes from the block's begin."""

    offset: int
    entries: int
    form: KVCacheFormat

    @property
    def bytes(self) -> int:
        """Without the padding that follows."""
        return self.entries * self.form.bytes_per_token


@dataclass(frozen=True)
class BlockLayout:
    """A block: 128 tokens of one sequence, for all layers (model_spec 4.1).

    index_keys, main: by source layer; in layer order, a layer's index keys before its entries. A layer of ratio r
    has 128 / r of either.
    """

    index_keys: dict[int, Section]
    main: dict[int, Section]
    block_bytes: int

    @classmethod
    def of(cls, config: ModelConfig) -> BlockLayout:
        """The layout of a model's blocks."""
        index_keys: dict[int, Section] = {}
        main: dict[int, Section] = {}
        offset = 0
        for layer in sorted({*config.kv_sources, *config.index_k_sources}):
            entries = BLOCK_TOKENS // config.ratios[layer]
            for layers, sections, form in (
                (config.index_k_sources, index_keys, index_format(config)),
                (config.kv_sources, main, main_format(config)),
            ):
                if layer in layers:
                    sections[layer] = Section(offset, entries, form)
                    offset = _round_up(offset + sections[layer].bytes, SECTION_BYTES)
        return cls(index_keys, main, _round_up(offset, math.lcm(128, main_format(config).bytes_per_token)))


@dataclass(frozen=True)
class SlotLayout:
    """A slot: what one sequence keeps beside its blocks (model_spec 4.3).

    ring_rows: window + backtracking; position p is in row p % ring_rows. rings: byte offset of each layer's ring, the
    draft layers' behind the others'. compressor_rows, compressors: the same for the float32 [rows, 2, head_dim] states
    of the sources of ratio 2; position p is in row p % compressor_rows. stored_bytes: where the rings of the layers
    below the first consumer end.
    """

    backtracking: int
    ring_rows: int
    ring_row_bytes: int
    rings: dict[int, int]
    compressor_rows: int
    compressor_row_bytes: int
    compressors: dict[int, int]
    stored_bytes: int
    slot_bytes: int

    @classmethod
    def of(cls, config: ModelConfig, backtracking: int = BACKTRACKING) -> SlotLayout:
        """The layout of a model's slots.

        Raises:
            ValueError: backtracking is below 1: a decode step itself stores one row before it attends.
        """
        if backtracking < 1:
            raise ValueError(f"backtracking must be at least 1, not {backtracking}")
        rows = config.attention.window + backtracking
        row_bytes = ring_format(config).bytes_per_token
        ring_bytes = _round_up(rows * row_bytes, SECTION_BYTES)
        rings = {layer: layer * ring_bytes for layer in range(len(config.ratios))}
        end = len(rings) * ring_bytes
        paired = [layer for layer in config.kv_sources if config.ratios[layer] == 2]
        state_rows = 2 + backtracking - 1
        state_row_bytes = 2 * config.attention.head_dim * 4
        compressors = {layer: end + place * state_rows * state_row_bytes for place, layer in enumerate(paired)}
        end += len(paired) * state_rows * state_row_bytes
        return cls(
            backtracking=backtracking,
            ring_rows=rows,
            ring_row_bytes=row_bytes,
            rings=rings,
            compressor_rows=state_rows,
            compressor_row_bytes=state_row_bytes,
            compressors=compressors,
            stored_bytes=config.first_consumer * ring_bytes,
            slot_bytes=_round_up(end, math.lcm(SECTION_BYTES, row_bytes)),
        )
