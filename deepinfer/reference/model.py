"""The oracle: the model as the specification writes it, over whole prompts, without cache or kernels (model_spec 3).

`Oracle(config, tensors)(token_ids)` gives the logits of every position, and what the model chose on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from deepinfer.config import ModelConfig
from deepinfer.config.engram_hash import hashes
from deepinfer.reference.attention import Attention, Choice, Shared
from deepinfer.reference.engram import ngrams, remember, rows_of
from deepinfer.reference.layers import Mix, Routing, experts, mix, mixed, post, rms_norm, route
from deepinfer.reference.precision import ROUNDED, Precision, Tensor
from deepinfer.reference.weights import Weights


@dataclass(frozen=True)
class Forced:
    """Choices that are given instead of made. routing: by layer [n, k]; entries: by index source [n, topk]."""

    routing: Mapping[int, Tensor] = field(default_factory=dict)
    entries: Mapping[int, Tensor] = field(default_factory=dict)


UNFORCED = Forced()


@dataclass
class Output:
    """logits [n, vocab]. hidden: by layer, the trunk [n, streams, hidden] that entered its attention.

    features: by draft target layer [n, hidden]. routing and choices: what was chosen, by layer.
    """

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)
    features: dict[int, Tensor] = field(default_factory=dict)
    routing: dict[int, Routing] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)


@dataclass
class State:
    """What goes from sub-layer to sub-layer: the trunk, the last output, and the coefficients in effect.

    x and mix are None before the first sub-layer; pre is then the first stream alone.
    """

    trunk: Tensor
    pre: Tensor
    x: Tensor | None = None
    mix: Mix | None = None

    @classmethod
    def begin(cls, embedded: Tensor, streams: int) -> State:
        """Every stream the embedding [n, hidden], the first one read."""
        pre = torch.zeros(len(embedded), streams, dtype=embedded.dtype)
        pre[:, 0] = 1
        return cls(embedded[:, None].repeat(1, streams, 1), pre)

    def settle(self, p: Precision) -> None:
        """Bring the last sub-layer's output into the trunk."""
        if self.x is not None and self.mix is not None:
            self.trunk = post(p, self.trunk, self.x, self.mix)


class Oracle:
    """The model with its weights, by their names in a checkpoint (without `model.`).

    lookup: [tokenizer's vocabulary] int64, token id -> id in engram's compressed vocabulary; needed with engram.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        precision: Precision = ROUNDED,
        *,
        lookup: Tensor | None = None,
    ) -> None:
        if not config.hyper.shifted:
            raise ValueError("the oracle has the shifted hyper-connections of the real model only (hc_shifted)")
        self.config, self.p, self.w = config, precision, Weights(tensors, precision.dtype)
        if config.engram and lookup is None:
            raise ValueError("a model with engram needs `lookup`, the table of its compressed vocabulary")
        self.lookup, self.hashes = lookup, hashes(config.engram) if config.engram else {}

    def __call__(self, token_ids: Tensor, *, forced: Forced = UNFORCED, keep_tokens: int | None = None) -> Output:
        """Run a whole prompt.

        Args:
            token_ids: [n] int64.
            keep_tokens: of the prompt's end, whose window keys the layers from the first of ratio 1 on may see
                (model_spec 3.8, mask); None: of all.
        """
        config, n = self.config, len(token_ids)
        shared = Shared()
        output = Output(torch.empty(0), choices=shared.choices)
        state = State.begin(self.embed(token_ids), config.hyper.streams)
        positions = torch.arange(n)
        for layer in range(config.layers):
            name = f"layers.{layer}"
            state.settle(self.p)
            if layer in self.hashes:
                state.trunk = self._remember(state.trunk, layer, token_ids)
            output.hidden[layer] = state.trunk
            if config.draft and layer in config.draft.target_layers:
                output.features[layer] = self.p.bf16(state.trunk.mean(1))
            y = self.enter(state, name, "attn")
            consumer = layer >= config.first_consumer and keep_tokens is not None
            first = max(n - (keep_tokens or 0), 0) if consumer else 0
            attention = Attention(config, self.p, self.w, layer, name)
            state.x = attention(y, positions, shared, forced=forced.entries.get(layer), window_from=first)
            state.settle(self.p)
            state.x, output.routing[layer] = self.moe(state, name, config.moe.topk, forced.routing.get(layer))
        output.logits = self.head(self.leave(state), "norm.weight")
        return output

    def embed(self, token_ids: Tensor) -> Tensor:
        """Rows of the embedding; zeros for ids that are not in it."""
        inside = (token_ids >= 0) & (token_ids < self.config.vocab_size)
        rows = self.w.plain("embed.weight")[token_ids.clamp(0, self.config.vocab_size - 1)]
        return rows * inside[:, None]

    def enter(self, state: State, name: str, kind: str) -> Tensor:
        """The normed input of a sub-layer, mixed by the previous one's coefficients; its own take their place."""
        mine = mix(self.p, self.config.hyper, state.trunk, self.w, f"{name}.hc_{kind}", self.config.rms_eps)
        h = mixed(self.p, state.trunk, state.pre)
        state.pre, state.mix = mine.pre, mine
        return rms_norm(self.p, h, self.w.plain(f"{name}.{kind}_norm.weight"), self.config.rms_eps)

    def moe(self, state: State, name: str, topk: int, forced: Tensor | None) -> tuple[Tensor, Routing]:
        """The expert sub-layer's output."""
        y = self.enter(state, name, "ffn")
        routing, weights = route(self.p, y, self.w, f"{name}.ffn", topk, forced)
        return experts(self.p, self.config.moe, y, routing, weights, self.w, f"{name}.ffn"), routing

    def leave(self, state: State) -> Tensor:
        """The hidden state [n, hidden] after the last sub-layer, not normed."""
        state.settle(self.p)
        return mixed(self.p, state.trunk, state.pre)

    def head(self, h: Tensor, norm: str) -> Tensor:
        """Logits [n, vocab] of a hidden state, fp32."""
        y = rms_norm(self.p, h, self.w.plain(norm), self.config.rms_eps)
        return self.p.fp32(self.p.matmul(y, self.w.linear("head")))

    def _remember(self, trunk: Tensor, layer: int, token_ids: Tensor) -> Tensor:
        engram, lookup = self.config.engram, self.lookup
        assert engram is not None and lookup is not None
        grams = ngrams(token_ids, lookup, engram.max_ngram, int(lookup[engram.pad_token]))
        rows = rows_of(grams, self.hashes[layer], engram.heads)
        return remember(self.p, trunk, rows, self.w, f"layers.{layer}.engram", self.config.rms_eps)
