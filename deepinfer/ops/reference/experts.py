"""Reference of the routed experts (model_spec 2.3, 3.9): float64 sums of exact products."""

from __future__ import annotations

import functools
import itertools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import dequantize


@functools.cache
def expert_order(experts: int) -> Kernel:
    """order, offsets = the flat choices sorted by expert, and where each expert's begin."""

    def run(ids: torch.Tensor, order: torch.Tensor, offsets: torch.Tensor) -> None:
        flat = ids.flatten()
        of = torch.where((flat >= 0) & (flat < experts), flat, experts).long()
        found = torch.sort(of, stable=True).indices
        order.copy_(torch.where(of[found] < experts, found, -1))
        offsets.zero_()
        offsets[1:] = torch.bincount(of, minlength=experts + 1)[:experts].cumsum(0)

    return run


@functools.cache
def expert_linear(experts: int, o: int, k: int) -> Kernel:
    """out[i] = values[rows[i]] * weight[e]^T for the expert e that position i belongs to."""

    def run(
        values: torch.Tensor,
        scales: torch.Tensor,
        rows: torch.Tensor,
        offsets: torch.Tensor,
        weight: torch.Tensor,
        weight_scales: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        out.zero_()
        ends = offsets.clamp(0, len(rows)).tolist()
        for expert, (begin, end) in enumerate(itertools.pairwise(ends)):
            own = rows[begin:end]
            inside = (own >= 0) & (own < len(values))
            if not inside.any():
                continue
            taken = own[inside].long()
            wide = dequantize(weight[expert], weight_scales[expert]).double()
            out[begin:end][inside] = (dequantize(values[taken], scales[taken]).double() @ wide.T).to(out.dtype)

    return run


@functools.cache
def combine(topk: int) -> Kernel:
    """out = shared + routed of rank 0 + ... in float32."""

    def run(shared: torch.Tensor, routed: torch.Tensor, order: torch.Tensor, out: torch.Tensor) -> None:
        total = len(shared) * topk
        inside = (order >= 0) & (order < total)
        place = torch.full_like(order[:total], -1)
        place[order[inside].long()] = inside.nonzero().flatten().int()
        sums = shared.float()
        for at in place.view(-1, topk).T:
            sums = torch.where((at >= 0)[:, None], sums + routed[at.clamp(min=0).long()].float(), sums)
        out.copy_(sums)

    return run
