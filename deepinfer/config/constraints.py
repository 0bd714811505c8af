"""What has to hold between the values of a configuration (model_spec 1.4)."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer.config.bounds import MOST_EXPERTS, MOST_TABLES
from deepinfer.config.model import FP8_BLOCK, ModelConfig

BLOCK_TOKENS = 128
"""Tokens of one block of the paged cache."""


def problems_of(config: ModelConfig) -> list[str]:
    """Everything that does not fit together; empty where all does."""
    found = [*_layers(config), *_sizes(config)]
    return found or [*_sharing(config), *_candidates(config), *_parts(config)]


def _layers(config: ModelConfig) -> Iterator[str]:
    draft = config.draft.layers if config.draft else 0
    if len(config.ratios) != config.layers + draft:
        yield (
            f"compress_ratios has {len(config.ratios)} entries, and there are {config.layers} layers "
            f"and {draft} draft layers"
        )
    elif any(config.ratios[config.layers :]):
        yield "compress_ratios: the draft layers' ratios, its last entries, must be 0"
    if set(config.ratios) - {0, 1, 2}:
        yield f"compress_ratios may hold 0, 1 and 2, and holds {sorted(set(config.ratios) - {0, 1, 2})}"
    if 1 not in config.ratios[: config.layers]:
        yield "compress_ratios: at least one layer must have the ratio 1"
    for name, ids in (
        ("kv_source_layer_ids", config.kv_sources),
        ("index_k_source_layer_ids", config.index_k_sources),
        ("index_source_layer_ids", config.index_sources),
        ("engram_layer_ids", config.engram.layers if config.engram else (0,)),
        ("dspark_target_layer_ids", config.draft.target_layers if config.draft else (0,)),
    ):
        if list(ids) != sorted(set(ids)) or not ids:
            yield f"{name} must be ascending and not empty, and is {list(ids)}"
        elif ids[-1] >= config.layers:
            yield f"{name} names layer {ids[-1]}, and there are {config.layers}"


def _sizes(config: ModelConfig) -> Iterator[str]:
    attention, moe = config.attention, config.moe
    blocks = {
        "hidden_size": config.hidden,
        "q_lora_rank": attention.q_rank,
        "o_groups * o_lora_rank": attention.o_groups * attention.o_rank,
        "head_dim": attention.head_dim,
        "moe_intermediate_size": moe.intermediate,
        "index_head_dim": config.indexer.head_dim,
    }
    if config.engram:
        blocks["engram_head_dim"] = config.engram.head_dim
    for name, size in blocks.items():
        if size % FP8_BLOCK:
            yield f"{name} must be a multiple of {FP8_BLOCK} (one scale covers as many), and is {size}"
    if attention.heads % attention.o_groups:
        yield f"o_groups ({attention.o_groups}) must divide num_attention_heads ({attention.heads})"
    if min(attention.head_dim, config.indexer.head_dim) < config.rope.dim:
        yield f"head_dim and index_head_dim must be at least qk_rope_head_dim ({config.rope.dim})"
    if moe.topk > moe.experts:
        yield f"num_experts_per_tok ({moe.topk}) must not exceed n_routed_experts ({moe.experts})"
    if config.draft and config.draft.topk > config.draft.experts:
        yield (
            f"dspark_num_experts_per_tok ({config.draft.topk}) must not exceed "
            f"dspark_n_routed_experts ({config.draft.experts})"
        )
    yield from _tokens(config)
    yield from _amounts(config)


def _tokens(config: ModelConfig) -> Iterator[str]:
    special, engram, draft = config.special, config.engram, config.draft
    for name, token in (
        ("bos_token_id", special.bos),
        ("eos_token_id", special.eos),
        ("pad_token_id", special.pad),
        ("image_token_id", config.image_token_id),
        ("engram_pad_token_id", engram.pad_token if engram else None),
        ("dspark_noise_token_id", draft.noise_token if draft else None),
    ):
        if token is not None and token >= config.vocab_size:
            yield f"{name} ({token}) is not in the vocabulary of {config.vocab_size}"
    if engram and engram.compressed_vocab > config.vocab_size:
        yield f"engram_compressed_vocab_size ({engram.compressed_vocab}) must not exceed vocab_size"


def _amounts(config: ModelConfig) -> Iterator[str]:
    """What is made for each of many: too many of them would take hours to list."""
    experts = config.layers * config.moe.experts + (config.draft.layers * config.draft.experts if config.draft else 0)
    if experts > MOST_EXPERTS:
        yield f"all layers together may have {MOST_EXPERTS} experts (n_routed_experts), and have {experts}"
    tables = len(config.engram.layers) * config.engram.rows_per_token if config.engram else 0
    if tables > MOST_TABLES:
        yield (
            f"all engram layers together may have {MOST_TABLES} tables (engram_layer_ids, engram_max_ngram_size - 1, "
            f"engram_n_heads), and have {tables}"
        )


def _sharing(config: ModelConfig) -> Iterator[str]:
    missing = sorted(set(config.kv_sources) - set(config.index_sources))
    if missing:
        yield f"kv_source_layer_ids {missing} must be in index_source_layer_ids too"
    for layer in range(config.layers):
        ratio = config.ratios[layer]
        if ratio == 0:
            if layer in {*config.kv_sources, *config.index_sources, *config.index_k_sources}:
                yield f"layer {layer} has the ratio 0 and cannot be a source"
            continue
        for name, origin in (
            ("key-value", config.kv_source(layer)),
            ("index-key", config.index_k_source(layer)),
            ("top-k", config.index_source(layer)),
        ):
            known = {*config.kv_sources, *config.index_k_sources, *config.index_sources}
            if origin not in known:
                yield f"layer {layer} has the ratio {ratio} and no {name} source before it"
            elif config.ratios[origin] != ratio:
                yield f"layer {layer} has the ratio {ratio}, and its {name} source {origin} has {config.ratios[origin]}"
        if config.kv_source(config.index_k_source(layer)) != config.kv_source(layer):
            yield f"layer {layer}: its index-key source and itself have different key-value sources"
        if config.index_k_source(config.index_source(layer)) != config.index_k_source(layer):
            yield f"layer {layer}: its top-k source and itself have different index-key sources"
    if config.first_consumer not in config.kv_sources:
        yield f"the first layer of ratio 1, {config.first_consumer}, must be in kv_source_layer_ids"


def _candidates(config: ModelConfig) -> Iterator[str]:
    indexer = config.indexer
    if indexer.candidate_source is None:
        return
    if indexer.candidate_source not in config.index_sources:
        yield f"candidate_source_layer_id {indexer.candidate_source} must be in index_source_layer_ids"
    elif len(set(config.ratios[indexer.candidate_source : config.layers])) > 1:
        yield "the layers from candidate_source_layer_id on must have one ratio"
    columns = indexer.candidate_topk * indexer.candidate_block
    if indexer.candidate_block not in (8, 16):
        yield f"candidate_block_size must be 8 or 16, and is {indexer.candidate_block}"
    if indexer.candidate_topk % 8 or indexer.candidate_topk > 4096:
        yield f"candidate_topk_blocks must be a multiple of 8 up to 4096, and is {indexer.candidate_topk}"
    if columns < indexer.topk or columns % 512:
        yield (
            f"candidate_topk_blocks * candidate_block_size must be a multiple of 512 and at least index_topk "
            f"({indexer.topk}), and is {columns}"
        )
    if indexer.heads > 32 or indexer.head_dim != 128:
        yield "candidate blocks need index_n_heads <= 32 and index_head_dim = 128"
    ratio = config.ratios[indexer.candidate_source]
    if indexer.candidate_block and ratio and (BLOCK_TOKENS // ratio) % indexer.candidate_block:
        yield f"candidate_block_size must divide {BLOCK_TOKENS // ratio}"


def _parts(config: ModelConfig) -> Iterator[str]:
    boundary = config.first_consumer
    if config.engram and config.engram.layers[-1] >= boundary:
        yield f"engram_layer_ids must be below the first layer of ratio 1, {boundary}"
    if config.draft and len({layer >= boundary for layer in config.draft.target_layers}) > 1:
        yield f"dspark_target_layer_ids must all be below layer {boundary} or all from it on"
    if config.moe.shared < 1:
        yield "n_shared_experts must be at least 1"
