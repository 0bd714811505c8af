"""How rows are multiplied by the model's quantised weights: the seam between exact products and faster ones.

A weight is made once, from what the checkpoint holds, by a `Products`; from then on it decides how its rows are
quantised. `Exact` is what model_spec says: Q8 of 32 columns, and products of dequantised values, which lose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from deepinfer.config import FP8_BLOCK
from deepinfer.ops.activation import Quantized, quantize_fp8, swiglu_quantize
from deepinfer.ops.experts import expert_linear, expert_order
from deepinfer.ops.gather import gather
from deepinfer.ops.hyper import HyperStep
from deepinfer.ops.linear import fp8_grouped_linear, fp8_linear
from deepinfer.ops.norm import norm
from deepinfer.ops.rotary import rotate_heads_quantize


class Fp8(NamedTuple):
    """e4m3 [o, k] and uint8 [o / 32, k / 32]: scales 2^(byte - 127) of blocks."""

    values: torch.Tensor
    scales: torch.Tensor


class Fp4(NamedTuple):
    """Of all experts: e2m1 as int8 [experts, o, k / 2], and uint8 [experts, o, k / 32]."""

    values: torch.Tensor
    scales: torch.Tensor


class Linear(Protocol):
    """A weight [o, k]. Every method quantises rows [n, k] and gives their products, bfloat16 [n, o]."""

    def of_step(self, step: HyperStep) -> torch.Tensor:
        """Of a sub-layer's input."""

    def of_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """Of the norm of x bfloat16 [n, k], rows at any stride."""

    def of_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Of x bfloat16 [n, k]."""

    def of_swiglu(self, gate_up: torch.Tensor, limit: float) -> torch.Tensor:
        """Of the SwiGLU of bfloat16 [n, 2 k]."""

    def of_quantized(self, rows: Quantized) -> torch.Tensor:
        """Of rows that are stored with a scale per 32 columns."""


class Heads(Protocol):
    """The weight of attention's output, group by group of heads (model_spec 3.3, 6 to 7)."""

    def __call__(self, o: torch.Tensor, positions: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """Of o float32 [n, h, d], rotated back: bfloat16 [n, outputs]."""


class Experts(Protocol):
    """The weights of the routed experts."""

    def __call__(self, step: HyperStep, ids: torch.Tensor, scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the experts ids int32 [n, topk] make of the rows, times their weights scaled float32 [n, topk].

        Returns bfloat16 [p, d], and which flat choice each of these rows is of, int32 [p]; -1: of none.
        """


class Products(Protocol):
    """Makes weights. name: of a weight in the checkpoint."""

    def linear(self, weight: Fp8, name: str) -> Linear:
        """A weight of FP8."""

    def heads(self, weight: Fp8, groups: int, name: str) -> Heads:
        """That of so many groups of heads, one group's rows below the other's."""

    def experts(self, enter: Fp4, leave: Fp4, limit: float, topk: int, name: str) -> Experts:
        """Those of the experts' first product, gates' rows and then the others', and of the second one."""

    def notice(self) -> str:
        """What a user has to know of how these weights are multiplied; '' where there is nothing."""


@dataclass(frozen=True)
class ExactLinear:
    """See `Linear`."""

    weight: Fp8

    def of_step(self, step: HyperStep) -> torch.Tensor:
        return fp8_linear(step.values, step.scales, *self.weight)

    def of_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        values, packed = norm(
            x, gain, eps=eps, fmt="e4m3", num_per_channels=FP8_BLOCK, round_sf=True, use_packed_ue8m0=True
        )
        scales = packed.view(torch.uint8)[:, : x.shape[1] // FP8_BLOCK].contiguous()
        return fp8_linear(values, scales, *self.weight)

    def of_rows(self, x: torch.Tensor) -> torch.Tensor:
        return fp8_linear(*quantize_fp8(x), *self.weight)

    def of_swiglu(self, gate_up: torch.Tensor, limit: float) -> torch.Tensor:
        return fp8_linear(*swiglu_quantize(gate_up, None, limit), *self.weight)

    def of_quantized(self, rows: Quantized) -> torch.Tensor:
        return fp8_linear(*rows, *self.weight)


@dataclass(frozen=True)
class ExactHeads:
    """See `Heads`."""

    weight: Fp8
    groups: int

    def __call__(self, o: torch.Tensor, positions: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        return fp8_grouped_linear(*rotate_heads_quantize(o, positions, rope, self.groups), *self.weight)


@dataclass(frozen=True)
class ExactExperts:
    """See `Experts`."""

    enter: Fp4
    leave: Fp4
    limit: float
    topk: int

    def __call__(self, step: HyperStep, ids: torch.Tensor, scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order, offsets = expert_order(ids, len(self.enter.values))
        rows = torch.div(order, self.topk, rounding_mode="floor")  # -1 stays
        gate_up = expert_linear(step.values, step.scales, rows, offsets, *self.enter)
        inner = swiglu_quantize(gate_up, gather(scaled.flatten(), order), self.limit)
        places = torch.arange(len(order), dtype=torch.int32, device=order.device)
        return expert_linear(*inner, places, offsets, *self.leave), order


class Exact:
    """See `Products`."""

    def linear(self, weight: Fp8, name: str) -> Linear:
        return ExactLinear(weight)

    def heads(self, weight: Fp8, groups: int, name: str) -> Heads:
        return ExactHeads(weight, groups)

    def experts(self, enter: Fp4, leave: Fp4, limit: float, topk: int, name: str) -> Experts:
        return ExactExperts(enter, leave, limit, topk)

    def notice(self) -> str:
        return ""


EXACT = Exact()
