"""The experts (model_spec 3.9)."""

from __future__ import annotations

import torch

from deepinfer.config import Moe as MoeConfig
from deepinfer.model import weights
from deepinfer.ops.experts import combine
from deepinfer.ops.gate import gate_topk
from deepinfer.ops.hyper import HyperStep
from deepinfer.ops.linear import bf16_linear


class Moe:
    """One layer's experts: the shared one, and those that each row is sent to."""

    def __init__(self, config: MoeConfig, own: weights.Moe) -> None:
        self.config, self.own = config, own

    def __call__(
        self, step: HyperStep, *, valid: torch.Tensor | None, forced: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sub-layer's output bf16 [n, d], and the experts int32 [n, topk] by rank.

        valid: bool [n], rows that are not padding; None: all. forced: experts in place of the gate's own choice.
        """
        own, limit = self.own, self.config.swiglu_limit
        ids, scaled = self.route(step.y, valid, forced)
        shared = own.shared_out.of_swiglu(own.shared_in.of_step(step), limit)
        routed, order = own.routed(step, ids, scaled)
        return combine(shared, routed, order, self.config.topk), ids

    def route(
        self, y: torch.Tensor, valid: torch.Tensor | None, forced: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts of each row, int32 [n, topk], and their weights, float32."""
        config = self.config
        logits = bf16_linear(y, self.own.gate, out_dtype=torch.float32)
        if forced is None:
            return gate_topk(logits, self.own.bias, None, None, config.topk, config.scaling, valid)
        scores = torch.sqrt(torch.nn.functional.softplus(logits)).gather(-1, forced.long())
        scaled = scores / (scores.sum(-1, keepdim=True) + 1e-20) * config.scaling
        return forced.to(torch.int32).contiguous(), scaled
