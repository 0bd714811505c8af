"""What a model is: sizes, and which layer takes what from which (model_spec 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FP8_BLOCK = 32
"""Rows and columns of a linear weight that share one scale; columns of an activation that do."""


@dataclass(frozen=True)
class Yarn:
    """Stretched rotary frequencies of the layers that have a compressed cache."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int


@dataclass(frozen=True)
class Rope:
    """dim: rotated dimensions, a head's last. theta: of ratio-0 and draft layers; compress_theta: of the others."""

    dim: int
    theta: float
    compress_theta: float
    yarn: Yarn | None


@dataclass(frozen=True)
class Attention:
    """heads query heads over one shared key-value head of head_dim. o_groups: groups of heads that wo_a projects."""

    heads: int
    head_dim: int
    q_rank: int
    o_rank: int
    o_groups: int
    window: int
    fp4_cache: bool


@dataclass(frozen=True)
class Indexer:
    """What chooses topk entries a query. candidate_source: the layer to whose best blocks the later ones keep."""

    heads: int
    head_dim: int
    topk: int
    candidate_source: int | None
    candidate_topk: int
    candidate_block: int


@dataclass(frozen=True)
class HyperConnections:
    """streams: copies of the residual. shifted: a sub-layer's input is mixed by the previous one's coefficients."""

    streams: int
    eps: float
    sinkhorn_iterations: int
    shifted: bool


@dataclass(frozen=True)
class Moe:
    """experts routed, of which each token takes topk, and shared ones that it always takes."""

    experts: int
    topk: int
    shared: int
    intermediate: int
    scaling: float
    swiglu_limit: float


@dataclass(frozen=True)
class Engram:
    """The n-gram memory: per layer (max_ngram - 1) * heads tables of about vocab_size rows of head_dim FP8 values."""

    layers: tuple[int, ...]
    max_ngram: int
    vocab_size: int
    heads: int
    head_dim: int
    compressed_vocab: int
    pad_token: int

    @property
    def rows_per_token(self) -> int:
        """Rows that a token fetches in one layer: one for every n >= 2 and head."""
        return (self.max_ngram - 1) * self.heads

    @property
    def width(self) -> int:
        """Values that a token fetches in one layer."""
        return self.rows_per_token * self.head_dim


@dataclass(frozen=True)
class Draft:
    """The DSpark draft model: layers, and the target layers whose attention inputs it is fed."""

    layers: int
    target_layers: tuple[int, ...]
    markov_rank: int
    noise_token: int
    experts: int
    topk: int


@dataclass(frozen=True)
class Vision:
    """Image encoder: its width, and how images are cut."""

    hidden: int
    downsample_ratio: int
    patch_size: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


@dataclass(frozen=True)
class Special:
    """Ids of the tokens that begin, end and pad a text, where the configuration says them."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None


@dataclass(frozen=True)
class ModelConfig:
    """A whole model. ratios: of the layers and then of the draft layers: 0 window only, else compression ratio.

    kv_sources, index_k_sources, index_sources: the layers that make what the following ones reuse.
    """

    layers: int
    hidden: int
    vocab_size: int
    max_positions: int
    rms_eps: float
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_k_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    rope: Rope
    attention: Attention
    indexer: Indexer
    hyper: HyperConnections
    moe: Moe
    engram: Engram | None
    draft: Draft | None
    vision: Vision | None
    image_token_id: int
    special: Special = Special()

    @property
    def first_consumer(self) -> int:
        """The first ratio-1 layer: it and later ones own no long cache but that of the first (model_spec 1.4)."""
        return self.ratios.index(1)

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed entries this one reads; itself below the first source."""
        return source(self.kv_sources, layer)

    def index_k_source(self, layer: int) -> int:
        """The layer whose index keys this one scores."""
        return source(self.index_k_sources, layer)

    def index_source(self, layer: int) -> int:
        """The layer whose choice of entries this one uses."""
        return source(self.index_sources, layer)

    def candidate_source(self, layer: int) -> int | None:
        """The layer whose blocks limit this one's choice; None where nothing does, as in that layer itself."""
        origin = self.indexer.candidate_source
        return origin if origin is not None and layer > origin else None


def source(sources: Sequence[int], layer: int) -> int:
    """The largest source <= layer, or the layer itself where there is none."""
    return max((one for one in sources if one <= layer), default=layer)
