"""Attention of the oracle: window, compressed entries, and the choice among them (model_spec 3.3 to 3.6)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from deepinfer.config import ModelConfig
from deepinfer.config.rope import frequencies
from deepinfer.reference.layers import linear8, rms_norm, rotate
from deepinfer.reference.precision import Precision, Tensor
from deepinfer.reference.weights import Weights


@dataclass
class Choice:
    """What an index source chose. entries [n, topk]: ascending, -1 where there are fewer.

    logits [n, klen of the last row]: -inf where an entry is not there yet or no candidate. blocks: those that later
    layers keep to, as `entries`, from the candidate source only.
    """

    entries: Tensor
    logits: Tensor
    blocks: Tensor | None = None


@dataclass
class Shared:
    """What layers make for the layers after them, within one forward pass."""

    kv: dict[int, Tensor] = field(default_factory=dict)
    before_rope: dict[int, Tensor] = field(default_factory=dict)
    index_keys: dict[int, Tensor] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)


class Attention:
    """One layer's attention over a whole prompt."""

    def __init__(self, config: ModelConfig, p: Precision, w: Weights, layer: int, name: str) -> None:
        self.config, self.p, self.w, self.layer, self.name = config, p, w, layer, f"{name}.attn"
        self.ratio = config.ratios[layer]
        self.frequencies = frequencies(config.rope, compressed=self.ratio > 0)

    def __call__(
        self, y: Tensor, positions: Tensor, shared: Shared, *, forced: Tensor | None, window_from: int
    ) -> Tensor:
        """The sub-layer's output [n, hidden] for its normed input y [n, hidden] at positions [n], 0 to n-1.

        forced: entries [n, topk] in place of an index source's own choice. window_from: the first position whose
        window key may be seen.
        """
        config, p = self.config, self.p
        qa, queries = self.queries(y, positions)
        keys = self.window_keys(y, positions)
        back = positions[:, None] - positions[None, :]
        seen = (back >= 0) & (back < config.attention.window) & (positions[None, :] >= window_from)
        if self.ratio:
            if self.layer in config.kv_sources:
                self._compress(y, shared)
            if self.layer in config.index_k_sources:
                self._index_keys(shared)
            if self.layer in config.index_sources:
                shared.choices[self.layer] = self._choose(y, qa, positions, shared, forced)
            compressed = shared.kv[config.kv_source(self.layer)]
            entries = shared.choices[config.index_source(self.layer)].entries
            keys = torch.cat((keys, compressed))
            seen = torch.cat((seen, _members(entries, len(compressed))), -1)
        return self.output(p.fp32(self.attend(queries, keys, seen)), positions)

    def window_keys(self, y: Tensor, positions: Tensor) -> Tensor:
        """The vectors [n, head_dim] that are key and value of the rows, as the cache gives them back."""
        return self.p.q8(self._turn(self._norm(self._linear(y, "wkv"), "kv_norm"), positions))

    def queries(self, y: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The low-rank query [n, q_rank] (normed) and the rotated heads [n, heads, head_dim]."""
        qa = self._norm(self._linear(y, "wq_a"), "q_norm")
        heads = self._linear(qa, "wq_b").reshape(len(y), self.config.attention.heads, -1)
        return qa, self._turn(heads, positions)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear8(self.p, x, self.w.linear(f"{self.name}.{name}"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(self.p, x, self.w.plain(f"{self.name}.{name}.weight"), self.config.rms_eps)

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.p.bf16(rotate(self.p, x, positions, self.frequencies))

    def attend(self, queries: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """One softmax over the keys [k, head_dim] that each row sees [n, k], and the sink. [n, heads, head_dim]."""
        p = self.p
        z = p.matmul(queries, keys) * self.config.attention.head_dim**-0.5
        z = z.masked_fill(~seen[:, None], float("-inf"))
        largest = z.amax(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).min)
        weights = torch.exp(z - largest)
        sink = torch.exp(self.w.plain(f"{self.name}.attn_sink")[:, None] - largest)
        return p.matmul(p.bf16(weights), keys.T) / (p.total(weights) + sink)

    def output(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Turn the heads back, project them by groups, and then together: [n, hidden]."""
        p, groups = self.p, self.config.attention.o_groups
        turned = rotate(p, heads, positions, self.frequencies, inverse=True)
        grouped = p.q8(p.fp32(turned).reshape(len(heads), groups, -1))
        first = self.w.linear(f"{self.name}.wo_a").reshape(groups, -1, grouped.shape[-1])
        parts = [p.bf16(p.matmul(grouped[:, group], first[group])) for group in range(groups)]
        return self._linear(torch.cat(parts, -1), "wo_b")

    def _compress(self, y: Tensor, shared: Shared) -> None:
        """Entry c stands for the tokens c*ratio to c*ratio + ratio - 1, all of which must be there."""
        p, count = self.p, len(y) // self.ratio
        latent = p.matmul(y, self.w.linear(f"{self.name}.compressor.wkv"))
        if self.ratio > 1:
            scores = p.fp32(p.matmul(y, self.w.linear(f"{self.name}.compressor.wgate")))
            score, value = (
                one[: count * self.ratio].reshape(count, self.ratio, one.shape[-1]) for one in (scores, p.fp32(latent))
            )
            latent = (torch.softmax(score, 1) * value).sum(1)
        own = self._norm(p.bf16(latent), "compressor.norm")
        turned = self._turn(own, torch.arange(count) * self.ratio)
        shared.before_rope[self.layer] = own
        shared.kv[self.layer] = p.q4_e4m3(turned) if self.config.attention.fp4_cache else p.q8(turned)

    def _index_keys(self, shared: Shared) -> None:
        p, source = self.p, shared.before_rope[self.config.kv_source(self.layer)]
        own = self._norm(p.bf16(p.matmul(source, self.w.linear(f"{self.name}.indexer.wk"))), "indexer.k_norm")
        shared.index_keys[self.layer] = p.q4_power(self._turn(own, torch.arange(len(own)) * self.ratio))

    def _choose(self, y: Tensor, qa: Tensor, positions: Tensor, shared: Shared, forced: Tensor | None) -> Choice:
        p, indexer = self.p, self.config.indexer
        q = p.q4_power(self._turn(self._linear(qa, "indexer.wq_b").reshape(len(y), indexer.heads, -1), positions))
        weights = p.bf16(p.matmul(y, self.w.linear(f"{self.name}.indexer.weights_proj")))
        keys = shared.index_keys[self.config.index_k_source(self.layer)]
        logits = index_logits(p, q, weights, keys)
        there = torch.arange(len(keys))[None] < ((positions + 1) // self.ratio)[:, None]
        logits = logits.masked_fill(~there, float("-inf"))
        origin = self.config.candidate_source(self.layer)
        if origin is not None:
            blocks = shared.choices[origin].blocks
            assert blocks is not None
            inside = _members(blocks, _blocks(len(keys), indexer.candidate_block))
            allowed = inside.repeat_interleave(indexer.candidate_block, -1)[:, : len(keys)]
            logits = logits.masked_fill(~allowed, float("-inf"))
        entries = best(logits, indexer.topk) if forced is None else forced
        made = self.layer == indexer.candidate_source
        return Choice(entries, logits, self._candidates(logits, there) if made else None)

    def _candidates(self, logits: Tensor, there: Tensor) -> Tensor:
        """The best blocks of consecutive entries: by their largest logit, the last one always."""
        indexer = self.config.indexer
        size, count = indexer.candidate_block, _blocks(logits.shape[1], indexer.candidate_block)
        missing = count * size - logits.shape[1]
        padded = torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        scores = padded.reshape(len(logits), count, size).amax(-1)
        last = (there.sum(-1) + size - 1) // size - 1
        rows = (last >= 0).nonzero()[:, 0]
        scores[rows, last[rows]] = float("inf")
        return best(scores, indexer.candidate_topk)


def index_logits(p: Precision, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """[n, entries]: over the heads of q [n, heads, d], the weighted sum of the products with keys [entries, d] >= 0."""
    return p.fp32((p.matmul(q, keys).clamp_min(0) * weights[..., None]).sum(1))


def best(scores: Tensor, count: int) -> Tensor:
    """The columns of the `count` largest scores of each row, ascending, -1 at the end; ties go to the lower column."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True)
    chosen = order.indices[:, :count].masked_fill(order.values[:, :count] == float("-inf"), scores.shape[1])
    chosen = chosen.sort(-1).values
    chosen = torch.nn.functional.pad(chosen, (0, count - chosen.shape[1]), value=scores.shape[1])
    return chosen.masked_fill(chosen == scores.shape[1], -1)


def _members(columns: Tensor, size: int) -> Tensor:
    """[n, size]: whether a column is among each row's `columns`, of which -1 is none."""
    found = torch.zeros(len(columns), size + 1, dtype=torch.bool)
    return found.scatter(1, columns.masked_fill(columns < 0, size), True)[:, :size]


def _blocks(entries: int, size: int) -> int:
    return -(-entries // size)
