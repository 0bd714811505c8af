"""Reference of the casts with a scale per 128 columns, and of the experts' padded rows."""

from __future__ import annotations

import functools
import itertools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import dequantize, quantize
from deepinfer.ops.reference.rotary import turned


@functools.cache
def quantize_per128(chosen: bool) -> Kernel:
    """values, scales = Q8 of x's rows, or of those that choices name, with 128 columns to a scale."""

    def run(
        x: torch.Tensor, choices: torch.Tensor | None, topk: int, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        if choices is None:
            _store(x, values, scales)
            return
        inside = (choices >= 0) & (choices < len(x) * topk)
        _store(x[choices[inside].long() // topk], values, scales, inside)

    return run


@functools.cache
def swiglu_per128(weighted: bool) -> Kernel:
    """values, scales = the same cast of silu(min(g, limit)) * clip(u, limit) * weight in float32."""

    def run(
        gate_up: torch.Tensor,
        limit: float,
        weights: torch.Tensor | None,
        choices: torch.Tensor | None,
        values: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        gate, up = gate_up.float().chunk(2, -1)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        # The exponential in float64, and rounded, as in `activation`.
        product = gate / (1 + torch.exp(-gate.double()).float()) * up
        if weights is None or choices is None:
            _store(product, values, scales)
            return
        inside = (choices >= 0) & (choices < len(weights))
        _store(product[inside] * weights[choices[inside].long(), None], values, scales, inside)

    return run


@functools.cache
def rotate_heads_per128() -> Kernel:
    """values, scales = the same cast of o with the last 64 columns of every head rotated back, all in float32."""

    def run(
        o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        tail = turned(o[..., -64:], positions, cos_sin, True)
        _store(torch.cat((o[..., :-64], tail), -1).flatten(1), values, scales)

    return run


@functools.cache
def regroup_per128() -> Kernel:
    """wide, wide_scales = the same cast of what values and scales stand for."""

    def run(values: torch.Tensor, scales: torch.Tensor, wide: torch.Tensor, wide_scales: torch.Tensor) -> None:
        _store(dequantize(values, scales), wide, wide_scales)

    return run


@functools.cache
def expert_rows(experts: int, alignment: int) -> Kernel:
    """ends, choices = where each expert's rows end, and which choice each row is for."""

    def run(order: torch.Tensor, offsets: torch.Tensor, ends: torch.Tensor, choices: torch.Tensor) -> None:
        choices.fill_(-1)
        begin = 0
        bounds = offsets.clamp(0, len(order)).tolist()
        for expert, (first, last) in enumerate(itertools.pairwise(bounds)):
            choices[begin : begin + last - first] = order[first:last]
            ends[expert] = begin + last - first
            begin += -(-(last - first) // alignment) * alignment

    return run


def _store(
    x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor | None = None
) -> None:  # fmt: skip
    quantized, stored = quantize(x, "e4m3", 128, True, "fp32")
    if rows is None:
        values.copy_(quantized)
        scales.copy_(stored)
        return
    values.view(torch.uint8)[rows] = quantized.view(torch.uint8)
    scales[rows] = stored
