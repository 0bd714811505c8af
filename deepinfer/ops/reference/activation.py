"""Reference of the casts to FP8 and FP4, and of SwiGLU before one (model_spec 3.0, 3.9)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import quantize


@functools.cache
def swiglu_quantize(weighted: bool) -> Kernel:
    """values, scales = Q8(silu(min(g, limit)) * clip(u, limit) * weight) in float32."""

    def run(
        gate_up: torch.Tensor, weights: torch.Tensor | None, limit: float, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        gate, up = gate_up.float().chunk(2, -1)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        # The exponential in float64, and rounded: see `gate`.
        product = gate / (1 + torch.exp(-gate.double()).float()) * up
        _store(product if weights is None else product * weights[:, None], "e4m3", values, scales)

    return run


@functools.cache
def quantize_fp8() -> Kernel:
    """values, scales = Q8(x)."""

    def run(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> None:
        _store(x, "e4m3", values, scales)

    return run


@functools.cache
def quantize_fp4() -> Kernel:
    """values, scales = Q4u(x)."""

    def run(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> None:
        _store(x, "e2m1", values, scales)

    return run


def _store(x: torch.Tensor, fmt: str, values: torch.Tensor, scales: torch.Tensor) -> None:
    quantized, stored = quantize(x, fmt, 32, True, "ue8m0")
    values.copy_(quantized)
    scales.copy_(stored)
