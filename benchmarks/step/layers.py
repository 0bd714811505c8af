"""The real model with fewer layers: every kind of layer is there, and the others in the real shares."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from benchmarks.ops import model as real
from deepinfer.config import Attention, Engram, HyperConnections, Indexer, ModelConfig, Moe, Rope, Special, Yarn
from deepinfer.config.constraints import problems_of
from deepinfer.errors import UsageError
from deepinfer.loading.inventory import TABLE, inventory

Kind = tuple[int, bool, bool, bool, bool]


def real_model() -> ModelConfig:
    """DeepSeek-V4.1-Flash without its draft layers and its image encoder (model_spec 1.2)."""
    return ModelConfig(
        layers=40,
        hidden=real.HIDDEN,
        vocab_size=real.VOCAB,
        max_positions=1 << 20,
        rms_eps=real.EPS,
        ratios=(0, 0, *[2] * 18, *[1] * 20),
        kv_sources=(2, 8, 14, 20),
        index_k_sources=(2, 8, 14, 20),
        index_sources=(2, 8, 14, 20, 24, 28, 32, 36),
        rope=Rope(real.ROPE_DIM, 10000.0, 160000.0, Yarn(16.0, 32.0, 1.0, 65536)),
        attention=Attention(real.HEADS, real.HEAD_DIM, real.Q_LORA, 1024, 8, real.WINDOW, fp4_cache=True),
        indexer=Indexer(real.INDEX_HEADS, real.INDEX_DIM, real.TOP_K, 20, real.CANDIDATE_BLOCKS, real.CANDIDATE_SIZE),
        hyper=HyperConnections(real.HC_MULT, 1e-6, 20, shifted=True),
        moe=Moe(384, 6, 1, 2304, 1.5, 10.0),
        engram=Engram((1, 14), real.NGRAM, 16000000, 8, 256, real.COMPRESSED_VOCAB, 2),
        draft=None,
        vision=None,
        image_token_id=129264,
        special=Special(0, 1, 2),
    )


def kind(config: ModelConfig, layer: int) -> Kind:
    """What tells layers apart: ratio, whether it makes entries, chooses them, among candidates alone, has a memory."""
    return (
        config.ratios[layer],
        layer in config.kv_sources,
        layer in config.index_sources,
        layer in config.index_sources and config.candidate_source(layer) is not None,
        config.engram is not None and layer in config.engram.layers,
    )


def least_layers(config: ModelConfig) -> int:
    """How many kinds of layers a model has."""
    return len({kind(config, layer) for layer in range(config.layers)})


def chosen(config: ModelConfig, count: int) -> list[int]:
    """`count` of the layers, ascending: the first of each kind, then of the kind that is furthest behind its share.

    Raises:
        UsageError: there are fewer layers than that, or more kinds.
    """
    least = least_layers(config)
    if not least <= count <= config.layers:
        raise UsageError(
            f"{count} layers cannot be taken from a model of {config.layers} with {least} kinds of them",
            next_step=f"ask for {least} to {config.layers} layers",
        )
    members: dict[Kind, list[int]] = {}
    for layer in range(config.layers):
        members.setdefault(kind(config, layer), []).append(layer)
    taken = dict.fromkeys(members, 1)
    while sum(taken.values()) < count:
        left = [one for one in members if taken[one] < len(members[one])]
        taken[min(left, key=lambda one: Fraction(taken[one], len(members[one])))] += 1
    return sorted(layer for one, layers in members.items() for layer in layers[: taken[one]])


def cut(config: ModelConfig, count: int) -> ModelConfig:
    """The model with `count` layers, as `chosen` has them, without draft layers and image encoder.

    Raises:
        UsageError: as `chosen`, or what is left is no model (model_spec 1.4).
    """
    kept = chosen(config, count)
    place = {layer: index for index, layer in enumerate(kept)}

    def moved(layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place[layer] for layer in layers if layer in place)

    source = config.indexer.candidate_source
    made = replace(
        config,
        layers=count,
        ratios=tuple(config.ratios[layer] for layer in kept),
        kv_sources=moved(config.kv_sources),
        index_k_sources=moved(config.index_k_sources),
        index_sources=moved(config.index_sources),
        indexer=replace(config.indexer, candidate_source=None if source is None else place.get(source)),
        engram=None if config.engram is None else replace(config.engram, layers=moved(config.engram.layers)),
        draft=None,
        vision=None,
    )
    if problems := problems_of(made):
        raise UsageError(
            f"with {count} layers nothing is left that is a model: {problems[0]}", next_step="ask for more layers"
        )
    return made


def weight_bytes(config: ModelConfig, engram_rows: int, gemm: str = "exact") -> int:
    """Bytes of the weights, with so many rows of each n-gram table at most. gemm: as `load_model` has it."""
    total = 0
    for name, spec in inventory(config).items():
        size = (spec.cut(engram_rows) if TABLE in name else spec).bytes
        if gemm == "deep_gemm" and ".ffn.experts." in name:  # FP8 for FP4, and next to no scales
            size = 2 * size if name.endswith(".weight") else 0
        total += size
    return total


def work_bytes(config: ModelConfig, rows: int, width: int) -> int:
    """An estimate of what a forward of so many rows takes while one kernel's calls of all layers are kept.

    rows: of the forward. width: entries that a row chooses from, at most.
    """
    attention, moe = config.attention, config.moe
    heads = attention.heads * attention.head_dim
    queries = heads * (2 + 4)
    experts = moe.topk * (moe.intermediate * 5 + config.hidden * 2)
    layer = heads * 12 + experts * 2 + config.hidden * 40
    scores = len(config.index_sources) * width * 4
    return int(rows * (max(queries, experts, config.hidden * 20) * config.layers + layer * 2 + scores) * 1.15)
