"""Every tensor of a checkpoint: name, shape and dtype, from the configuration (model_spec 2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from deepinfer.config import FP8_BLOCK, ModelConfig
from deepinfer.config.engram_hash import hashes

BF16, F32, FP8, FP4, E8M0 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8, torch.float8_e8m0fnu
VISION_BLOCKS, VISION_INTERMEDIATE = 32, 2816
"""The image encoder is fixed: the configuration does not say these (model_spec 1.3)."""
OPTIONAL_PREFIXES = ("vision.", "aligner.", "image_")
"""What a checkpoint without image inputs may lack as a whole."""
TABLE = ".engram.embed."
"""In the names of n-gram tables: two layers of the real model have 200 GB of them."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor has to be. FP4 is int8 with two values a byte; shape counts bytes there."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def cut(self, rows: int) -> TensorSpec:
        """The same with so many rows at most."""
        return TensorSpec((min(rows, self.shape[0]), *self.shape[1:]), self.dtype)


Named = Iterator[tuple[str, TensorSpec]]


def inventory(config: ModelConfig) -> dict[str, TensorSpec]:
    """Name -> what it has to be, without the optional prefix `model.`, in the order of the layers."""
    return dict(_all(config))


def _all(config: ModelConfig) -> Named:
    table = TensorSpec((config.vocab_size, config.hidden), BF16)
    yield "embed.weight", table
    yield "head.weight", table
    yield "norm.weight", TensorSpec((config.hidden,), BF16)
    if not config.hyper.shifted:
        m = config.hyper.streams
        for name, shape in (("base", (m,)), ("fn", (m, m * config.hidden)), ("scale", (1,))):
            yield f"hc_head_{name}", TensorSpec(shape, F32)
    for layer in range(config.layers):
        yield from _layer(config, layer, f"layers.{layer}", config.moe.experts)
    if config.draft:
        for index in range(config.draft.layers):
            yield from _layer(config, config.layers + index, f"mtp.{index}", config.draft.experts)
        yield from _draft(config)
    if config.vision:
        yield from _vision(config)


def _fp8(name: str, rows: int, columns: int) -> Named:
    yield f"{name}.weight", TensorSpec((rows, columns), FP8)
    yield f"{name}.scale", TensorSpec((-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)), E8M0)


def _fp4(name: str, rows: int, columns: int) -> Named:
    yield f"{name}.weight", TensorSpec((rows, columns // 2), FP4)
    yield f"{name}.scale", TensorSpec((rows, columns // FP8_BLOCK), E8M0)


def _layer(config: ModelConfig, layer: int, name: str, experts: int) -> Named:
    m, hidden = config.hyper.streams, config.hidden
    coefficients = m * (m + 2)
    for kind in ("attn", "ffn"):
        yield f"{name}.hc_{kind}_fn", TensorSpec((coefficients, m * hidden), F32)
        yield f"{name}.hc_{kind}_base", TensorSpec((coefficients,), F32)
        yield f"{name}.hc_{kind}_scale", TensorSpec((3,), F32)
        yield f"{name}.{kind}_norm.weight", TensorSpec((hidden,), BF16)
    yield from _attention(config, f"{name}.attn")
    if layer < config.layers:
        yield from _compressed(config, layer, f"{name}.attn")
        if config.engram and layer in config.engram.layers:
            yield from _engram(config, layer, f"{name}.engram")
    yield from _moe(config, f"{name}.ffn", experts)


def _attention(config: ModelConfig, name: str) -> Named:
    a, hidden = config.attention, config.hidden
    yield from _fp8(f"{name}.wq_a", a.q_rank, hidden)
    yield f"{name}.q_norm.weight", TensorSpec((a.q_rank,), BF16)
    yield from _fp8(f"{name}.wq_b", a.heads * a.head_dim, a.q_rank)
    yield from _fp8(f"{name}.wkv", a.head_dim, hidden)
    yield f"{name}.kv_norm.weight", TensorSpec((a.head_dim,), BF16)
    yield f"{name}.attn_sink", TensorSpec((a.heads,), F32)
    yield from _fp8(f"{name}.wo_a", a.o_groups * a.o_rank, a.heads // a.o_groups * a.head_dim)
    yield from _fp8(f"{name}.wo_b", hidden, a.o_groups * a.o_rank)


def _compressed(config: ModelConfig, layer: int, name: str) -> Named:
    dim, indexer = config.attention.head_dim, config.indexer
    if layer in config.kv_sources:
        yield f"{name}.compressor.wkv.weight", TensorSpec((dim, config.hidden), BF16)
        if config.ratios[layer] > 1:
            yield f"{name}.compressor.wgate.weight", TensorSpec((dim, config.hidden), BF16)
        yield f"{name}.compressor.norm.weight", TensorSpec((dim,), BF16)
    if layer in config.index_sources:
        yield from _fp8(f"{name}.indexer.wq_b", indexer.heads * indexer.head_dim, config.attention.q_rank)
        yield f"{name}.indexer.weights_proj.weight", TensorSpec((indexer.heads, config.hidden), BF16)
    if layer in config.index_k_sources:
        yield f"{name}.indexer.wk.weight", TensorSpec((indexer.head_dim, dim), BF16)
        yield f"{name}.indexer.k_norm.weight", TensorSpec((indexer.head_dim,), BF16)


def _moe(config: ModelConfig, name: str, experts: int) -> Named:
    hidden, inner = config.hidden, config.moe.intermediate
    yield f"{name}.gate.weight", TensorSpec((experts, hidden), BF16)
    yield f"{name}.gate.bias", TensorSpec((experts,), F32)
    yield f"{name}.gate.bias_vl", TensorSpec((experts,), F32)
    for part, rows, columns in (
        ("w1", inner * config.moe.shared, hidden),
        ("w3", inner * config.moe.shared, hidden),
        ("w2", hidden, inner * config.moe.shared),
    ):
        yield from _fp8(f"{name}.shared_experts.{part}", rows, columns)
    for expert in range(experts):
        for part, rows, columns in (("w1", inner, hidden), ("w3", inner, hidden), ("w2", hidden, inner)):
            yield from _fp4(f"{name}.experts.{expert}.{part}", rows, columns)


def _engram(config: ModelConfig, layer: int, name: str) -> Named:
    engram, m, hidden = config.engram, config.hyper.streams, config.hidden
    assert engram is not None
    rows = hashes(engram)[layer].rows
    yield f"{name}.embed.weight", TensorSpec((rows, engram.head_dim), FP8)
    yield f"{name}.embed.scale", TensorSpec((rows, engram.head_dim // FP8_BLOCK), E8M0)
    yield from _fp8(f"{name}.wkv", (m + 1) * hidden, engram.width)
    yield f"{name}.q_weight", TensorSpec((m, hidden), BF16)
    yield f"{name}.k_weight", TensorSpec((m, hidden), BF16)


def _draft(config: ModelConfig) -> Named:
    draft, hidden = config.draft, config.hidden
    assert draft is not None
    last = f"mtp.{draft.layers - 1}"
    yield from _fp8("mtp.0.main_proj", hidden, len(draft.target_layers) * hidden)
    yield "mtp.0.main_norm.weight", TensorSpec((hidden,), BF16)
    yield f"{last}.norm.weight", TensorSpec((hidden,), BF16)
    yield f"{last}.markov_head.embed.weight", TensorSpec((config.vocab_size, draft.markov_rank), BF16)
    yield f"{last}.markov_head.head.weight", TensorSpec((config.vocab_size, draft.markov_rank), BF16)
    yield f"{last}.confidence_head.proj.weight", TensorSpec((1, hidden + draft.markov_rank), BF16)


def _vision(config: ModelConfig) -> Named:
    vision, hidden = config.vision, config.hidden
    assert vision is not None
    width, inner = vision.hidden, VISION_INTERMEDIATE

    def linear(name: str, rows: int, columns: int) -> Named:
        yield f"{name}.weight", TensorSpec((rows, columns), BF16)
        yield f"{name}.bias", TensorSpec((rows,), BF16)

    for name in ("image_start", "image_end", "image_newline"):
        yield name, TensorSpec((hidden,), BF16)
    yield from linear("vision.patch_embed.proj", width, 3 * vision.patch_size**2)
    for block in range(VISION_BLOCKS):
        own = f"vision.blocks.{block}"
        yield f"{own}.norm1.weight", TensorSpec((width,), BF16)
        yield f"{own}.norm2.weight", TensorSpec((width,), BF16)
        yield from linear(f"{own}.attn.wqkv", 3 * width, width)
        yield from linear(f"{own}.attn.wo", width, width)
        yield f"{own}.mlp.w1.weight", TensorSpec((2 * inner, width), BF16)
        yield f"{own}.mlp.w2.weight", TensorSpec((width, inner), BF16)
    yield "vision.norm.weight", TensorSpec((width,), BF16)
    yield from linear("aligner.w1", hidden, vision.downsample_ratio**2 * width)
    yield from linear("aligner.w2", hidden, hidden)
