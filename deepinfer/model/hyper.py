"""The four streams of the residual from sub-layer to sub-layer (model_spec 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from deepinfer.config import ModelConfig
from deepinfer.model.weights import Hyper
from deepinfer.ops.hyper import HyperStep, hyper_leave, hyper_post, hyper_step

Memory = Callable[[torch.Tensor], torch.Tensor]
"""What works on the trunk between two sub-layers, in place: the n-gram memory."""


@dataclass(frozen=True)
class Streams:
    """What goes on from a sub-layer: trunk bf16 [n, 4, d], and the float32 coefficients that it decided.

    x: bf16 [n, d], what the sub-layer gave; None before the first one, when post and comb are None too.
    """

    trunk: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor | None = None
    comb: torch.Tensor | None = None
    x: torch.Tensor | None = None

    @classmethod
    def begin(cls, embedded: torch.Tensor, streams: int) -> Streams:
        """Every stream the embedding [n, d], of which the first sub-layer reads the first."""
        trunk = embedded[:, None].repeat(1, streams, 1)
        pre = torch.zeros((len(embedded), streams), dtype=torch.float32, device=embedded.device)
        pre[:, 0] = 1
        return cls(trunk, pre)

    def enter(self, config: ModelConfig, weights: Hyper, memory: Memory | None = None) -> tuple[HyperStep, Streams]:
        """The input of the next sub-layer, and the streams as it finds them; the old trunk is overwritten."""
        trunk, x = self.trunk, self.x
        if memory is not None:
            if x is not None:
                assert self.post is not None and self.comb is not None
                trunk, x = hyper_post(trunk, x, self.post, self.comb, out=trunk), None
            trunk = memory(trunk)
        hyper = config.hyper
        step = hyper_step(
            *(trunk, x, self.post, self.comb, self.pre, *weights),
            *(config.rms_eps, hyper.eps, hyper.sinkhorn_iterations),
            out=None if x is None else trunk,
        )
        return step, Streams(step.trunk, step.pre, step.post, step.comb)

    def leave(self, x: torch.Tensor) -> Streams:
        """The streams with a sub-layer's output, which the next `enter` brings into the trunk."""
        return replace(self, x=x)

    def rows(self, index: torch.Tensor) -> Streams:
        """Of some rows alone."""
        parts = (self.trunk, self.pre, self.post, self.comb, self.x)
        return Streams(*(None if part is None else part[index] for part in parts))  # type: ignore[arg-type]

    def hidden(self) -> torch.Tensor:
        """The hidden state [n, d] after the last sub-layer, not normed."""
        return hyper_leave(self.trunk, self.x, self.post, self.comb, self.pre)


def rows_of_step(step: HyperStep, index: torch.Tensor) -> HyperStep:
    """A sub-layer's input of some rows alone."""
    values = step.values.view(torch.uint8)[index].view(step.values.dtype)
    return HyperStep(*(part[index] if part is not step.values else values for part in step))
