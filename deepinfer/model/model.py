"""The model's forward: rows of tokens in, logits of those that are wanted out (model_spec 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from deepinfer.cache.pool import Caches
from deepinfer.cache.prefix import Truncation as Truncation
from deepinfer.config import ModelConfig
from deepinfer.config.engram_hash import hashes
from deepinfer.errors import ConfigError, OptionError, shown
from deepinfer.model import rotary
from deepinfer.model.attention import Attention
from deepinfer.model.batch import Batch, RowSpec, Vocabulary
from deepinfer.model.block_tables import BlockTables
from deepinfer.model.decode import Decode
from deepinfer.model.engram import Engram
from deepinfer.model.hyper import Streams, rows_of_step
from deepinfer.model.moe import Moe
from deepinfer.model.prefill import Prefill
from deepinfer.model.prefill_plan import plan
from deepinfer.model.threads import fitting_threads
from deepinfer.model.weights import Weights
from deepinfer.ops.gather import gather
from deepinfer.ops.hyper import STREAMS
from deepinfer.ops.linear import bf16_linear
from deepinfer.ops.norm import norm

KEEP_TOKENS = 140
HEAD, INDEX_HEAD, ROTATED = 512, 128, 64
"""Sizes that the kernels are written for."""


@dataclass(frozen=True)
class Forced:
    """Choices that are given instead of made, for every row of the batch.

    routing: by layer, experts [n, k] by rank. entries: by index source, a sequence's entries [n, topk], ascending, -1
    at the end.
    """

    routing: Mapping[int, torch.Tensor] = field(default_factory=dict)
    entries: Mapping[int, torch.Tensor] = field(default_factory=dict)


@dataclass
class Trace:
    """What a forward did, gathered where one is given to it.

    hidden: by layer, the trunk bf16 [n, 4, hidden] that entered its attention. routing: by layer, experts int32
    [n, k]. entries: by index source, int32 [n, topk]. rows: by layer, which rows of the batch these are, int64; None:
    all.
    """

    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    routing: dict[int, torch.Tensor] = field(default_factory=dict)
    entries: dict[int, torch.Tensor] = field(default_factory=dict)
    rows: dict[int, torch.Tensor | None] = field(default_factory=dict)


class Model:
    """A model on one device.

    vocabulary: engram's, which `batch` reads; None for a model without engram. max_positions: how many tokens a
    sequence may have.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        lookup: torch.Tensor | None = None,
        truncation: Truncation = "off",
        keep_tokens: int = KEEP_TOKENS,
        max_positions: int | None = None,
    ) -> None:
        """
        Args:
            lookup: int64 [tokenizer's vocabulary], token id -> id in engram's vocabulary; needed with engram.
            truncation: of prefill, by model_spec 3.8: "mask" limits what the windows of the layers from the first
                of ratio 1 on reach back to, "compact" gives the same logits of a prompt's last row, and leaves
                these layers out for all but the last `keep_tokens` tokens.
            max_positions: at most the configuration's, which is the default.

        Raises:
            ConfigError: the configuration has sizes or a variant that the kernels do not know.
            ValueError: an argument is not as said.
        """
        _check(config, truncation, keep_tokens)
        if max_positions is not None and max_positions < 1:
            raise ValueError(f"max_positions must be at least 1, not {max_positions}")
        if config.engram is not None and lookup is None:
            raise ValueError("a model with engram needs `lookup`, the table of its compressed vocabulary")
        self.config, self.weights, self.truncation, self.keep_tokens = config, weights, truncation, keep_tokens
        self.device = weights.embed.device
        self.max_positions = min(max_positions or config.max_positions, config.max_positions)
        self.vocabulary = (
            Vocabulary.of(lookup, config.engram) if config.engram is not None and lookup is not None else None
        )
        tables = {
            compressed: rotary.table(config.rope, self.max_positions, self.device, compressed=compressed)
            for compressed in (False, True)
        }
        hashed = hashes(config.engram) if config.engram is not None else {}
        self.attention, self.moe, self.engram = [], [], {}
        for layer, own in enumerate(weights.layers):
            self.attention.append(Attention(config, layer, own, tables[config.ratios[layer] > 0]))
            self.moe.append(Moe(config.moe, own.moe))
            if own.engram is not None:
                self.engram[layer] = Engram(own.engram, hashed[layer], config.rms_eps)

    def batch(self, rows: Sequence[RowSpec], *, decode: bool, tables: BlockTables | None = None) -> Batch:
        """A batch for `forward`, on the model's device; see `Batch.of`."""
        memories = {layer: one.fetch_on_host for layer, one in self.engram.items() if one.on_host}
        return Batch.of(
            rows,
            decode=decode,
            vocabulary=self.vocabulary,
            device=self.device,
            memories=memories,
            tables=tables,
        )

    @torch.no_grad()
    def forward(
        self, batch: Batch, caches: Caches, *, forced: Forced | None = None, trace: Trace | None = None
    ) -> torch.Tensor:
        """Run the rows through all layers, and store what later rows of their sequences need.

        Returns:
            float32 [w, vocabulary]: the logits of the batch's wanted rows.

        Raises:
            ValueError: positions beyond max_positions; more rows of a sequence in a decode step than it may step
                back; rows wanted that truncation leaves out.
        """
        self._check_batch(batch, caches)
        with fitting_threads(self.config.hidden, self.device):
            return self._forward(batch, caches, forced or Forced(), trace)

    def _forward(self, batch: Batch, caches: Caches, forced: Forced, trace: Trace | None) -> torch.Tensor:
        access = self._access(batch, caches)
        embedded = gather(self.weights.embed, batch.token_ids)
        streams = Streams.begin(embedded, self.config.hyper.streams)
        kept: torch.Tensor | None = None
        for layer, own in enumerate(self.weights.layers):
            memory = self.engram.get(layer)
            remember = None if memory is None else partial(memory, batch=batch, layer=layer)
            step, streams = streams.enter(self.config, own.attention_hyper, remember)
            attention = self.attention[layer]
            attention.compress(step.y, access, caches)
            if layer == self.config.first_consumer and isinstance(access, Prefill):
                access.narrow()
                kept = access.rows.kept
                if kept is not None:
                    step, streams = rows_of_step(step, kept), streams.rows(kept)
            if trace is not None:
                trace.hidden[layer], trace.rows[layer] = step.trunk.clone(), kept
            x, entries = attention(step, access, _of(forced.entries, layer, kept))
            step, streams = streams.leave(x).enter(self.config, own.moe_hyper)
            x, routing = self.moe[layer](step, valid=access.valid, forced=_of(forced.routing, layer, kept))
            streams = streams.leave(x)
            if trace is not None:
                trace.routing[layer] = routing
                if entries is not None:
                    trace.entries[layer] = entries
        return self._head(streams, access.rows.wanted if isinstance(access, Prefill) else batch.wanted)

    def _access(self, batch: Batch, caches: Caches) -> Prefill | Decode:
        if batch.decode:
            return Decode(self.config, caches, batch)
        made = plan(
            batch,
            ratios=sorted(set(self.config.ratios) - {0}),
            window=self.config.attention.window,
            ring_rows=caches.ring_rows,
            keep_tokens=None if self.truncation == "off" else self.keep_tokens,
            compact=self.truncation == "compact",
        )
        return Prefill(self.config, caches, batch, made)

    def _head(self, streams: Streams, wanted: torch.Tensor) -> torch.Tensor:
        y = norm(streams.rows(wanted).hidden(), self.weights.norm, eps=self.config.rms_eps)
        return bf16_linear(y, self.weights.head, out_dtype=torch.float32)

    def _check_batch(self, batch: Batch, caches: Caches) -> None:
        end = max(start + count for start, count in zip(batch.starts, batch.counts, strict=True))
        if end > self.max_positions:
            raise ValueError(f"a sequence of {end} tokens is longer than the {self.max_positions} that the model takes")
        most = caches.slot_layout.backtracking
        if batch.decode and max(batch.counts) > most:
            raise ValueError(
                f"a decode step of {max(batch.counts)} rows a sequence: caches were made for {most} at most"
            )
        if self.truncation != "off" and self.keep_tokens < caches.ring_rows:
            raise ValueError(
                f"keep_tokens must be at least {caches.ring_rows}, window and backtracking, not {self.keep_tokens}"
            )


def _of(given: Mapping[int, torch.Tensor], layer: int, kept: torch.Tensor | None) -> torch.Tensor | None:
    found = given.get(layer)
    if found is None:
        return None
    found = found.to(torch.int32)
    return found.contiguous() if kept is None else found[kept]


def _check(config: ModelConfig, truncation: str, keep_tokens: int) -> None:
    """Refuse what there are no kernels for."""
    problems = []
    for name, found, known in (
        ("hc_mult", config.hyper.streams, STREAMS),
        ("head_dim", config.attention.head_dim, HEAD),
        ("index_head_dim", config.indexer.head_dim, INDEX_HEAD),
        ("qk_rope_head_dim", config.rope.dim, ROTATED),
    ):
        if found != known:
            problems.append(f"{name} is {found}, and the kernels are written for {known}")
    indexer = config.indexer
    if indexer.candidate_source is not None and indexer.topk % 8:
        problems.append(f"index_topk is {indexer.topk}, and with candidate blocks it must be a multiple of 8")
    if not config.hyper.shifted:
        problems.append("hc_shifted is false, and the engine has the shifted variant only")
    if problems:
        raise ConfigError("this model cannot be run: " + "; ".join(problems), cause="it is not DeepSeek-V4.1-Flash")
    if truncation not in ("off", "mask", "compact"):
        raise OptionError("truncation", f"must be off, mask or compact, not {shown(truncation)}")
    if truncation != "off" and keep_tokens < config.attention.window:
        raise OptionError("keep_tokens", f"must be at least the window, {config.attention.window}, not {keep_tokens}")
