"""The draft model of the oracle (model_spec 3.12): one forward proposes a block, a Markov head links its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.reference.attention import Attention
from deepinfer.reference.layers import linear8, rms_norm
from deepinfer.reference.model import Oracle, Output, State
from deepinfer.reference.precision import Tensor


@dataclass(frozen=True)
class Proposal:
    """logits [count, vocab]: row i is of the token at a+2+i, after the Markov head. confidence [count]."""

    logits: Tensor
    confidence: Tensor


class DraftOracle:
    """The draft model that belongs to an oracle."""

    def __init__(self, target: Oracle) -> None:
        draft = target.config.draft
        if draft is None:
            raise ValueError("this model has no draft layers (num_nextn_predict_layers)")
        self.target, self.draft, self.p, self.w = target, draft, target.p, target.w
        layers = target.config.layers
        names = [f"mtp.{index}" for index in range(draft.layers)]
        self.attention = [Attention(target.config, self.p, self.w, layers + i, name) for i, name in enumerate(names)]

    def __call__(self, output: Output, accepted: int, tokens: Sequence[int], *, temperature: float = 1.0) -> Proposal:
        """Propose what follows the golden token.

        output is the target's, over at least the positions up to `accepted`, the last whose token is settled.
        tokens: the golden token, then the drafts that were drawn from the rows before: row i follows tokens[i].
        temperature: of the confidence head.
        """
        p, config, count = self.p, self.target.config, len(tokens)
        main = self._main(output)
        embedded = self.target.embed(torch.tensor([tokens[0], *[self.draft.noise_token] * (count - 1)]))
        state = State.begin(embedded, config.hyper.streams)
        positions = accepted + 1 + torch.arange(count)
        first = max(0, accepted - config.attention.window + 1)
        for index, attention in enumerate(self.attention):
            name = f"mtp.{index}"
            state.settle(p)
            y = self.target.enter(state, name, "attn")
            history = attention.window_keys(main, torch.arange(len(main)))[first : accepted + 1]
            keys = torch.cat((history, attention.window_keys(y, positions)))
            seen = torch.ones(count, len(keys), dtype=torch.bool)
            heads = attention.attend(attention.queries(y, positions)[1], keys, seen)
            state.x = attention.output(p.fp32(heads), positions)
            state.settle(p)
            state.x, _ = self.target.moe(state, name, self.draft.topk, None)
        return self._propose(self.target.leave(state), torch.tensor(tokens), temperature)

    def _main(self, output: Output) -> Tensor:
        """The target's features of every position, brought to the draft's width."""
        features = torch.cat([output.features[layer] for layer in self.draft.target_layers], -1)
        projected = linear8(self.p, features, self.w.linear("mtp.0.main_proj"))
        return rms_norm(self.p, projected, self.w.plain("mtp.0.main_norm.weight"), self.target.config.rms_eps)

    def _propose(self, h: Tensor, previous: Tensor, temperature: float) -> Proposal:
        p, last = self.p, f"mtp.{self.draft.layers - 1}"
        embedded = self.w.plain(f"{last}.markov_head.embed.weight")[previous]
        markov = p.matmul(embedded, self.w.linear(f"{last}.markov_head.head"))
        logits = p.fp32(self.target.head(h, f"{last}.norm.weight") + markov)
        z = p.matmul(torch.cat((h, embedded), -1), self.w.linear(f"{last}.confidence_head.proj"))[:, 0]
        return Proposal(logits, torch.sigmoid((z / temperature).clamp(-60, 60)))
