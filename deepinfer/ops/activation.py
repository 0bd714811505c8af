"""Casts of activations to FP8 and FP4, and the experts' SwiGLU before such a cast (model_spec 3.0, 3.9)."""

from __future__ import annotations

import math

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.linear import GROUP, require_groups

Quantized = tuple[torch.Tensor, torch.Tensor]
"""Values, and their scales as uint8: 2^(byte - 127) per 32 columns of a row."""


def swiglu_quantize(gate_up: torch.Tensor, weights: torch.Tensor | None, limit: float) -> Quantized:
    """Q8(g / (1 + exp(-g)) * u * weight), all in float32 (model_spec 3.9): (e4m3 [m, f], uint8 [m, f / 32]).

    g is at most `limit`, u within +-limit; NaN stays NaN.

    Args:
        gate_up: bfloat16 [m, 2 f], contiguous: g and then u; f a multiple of 32.
        weights: float32 [m], contiguous, a row's weight; None: all 1.
        limit: above 0, and finite.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("swiglu_quantize")
    check.tensor("gate_up", gate_up, torch.bfloat16, ("m", "2f"), rows="contiguous")
    check.optional("weights", weights, torch.float32, ("m",), rows="contiguous")
    check.require(0 < limit < math.inf, "limit", f"must be above 0 and finite, not {limit}")
    m, both = check.size("m"), check.size("2f")
    check.require(both > 0 and both % (2 * GROUP) == 0, "gate_up", f"must have a multiple of 64 columns, not {both}")
    values = torch.empty((m, both // 2), dtype=torch.float8_e4m3fn, device=gate_up.device)
    scales = torch.empty((m, both // 2 // GROUP), dtype=torch.uint8, device=gate_up.device)
    if m:
        factory("swiglu_quantize")(weights is not None)(gate_up, weights, float(limit), values, scales)
    return values, scales


def quantize_fp8(x: torch.Tensor) -> Quantized:
    """Q8 (model_spec 3.0): (e4m3 [n, k], uint8 [n, k / 32]).

    x: bfloat16 or float32 [n, k], rows contiguous at any stride, k a multiple of 32. A NaN does not count towards its
    group's scale, and stays NaN.

    Raises:
        TypeError, ValueError: x is not as said.
    """
    check = Arguments("quantize_fp8")
    check.tensor("x", x, (torch.bfloat16, torch.float32), ("n", "k"))
    n, k = check.size("n"), check.size("k")
    require_groups(check, "k", k)
    values = torch.empty((n, k), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((n, k // GROUP), dtype=torch.uint8, device=x.device)
    if n:
        factory("quantize_fp8")()(x, values, scales)
    return values, scales


def quantize_fp4(x: torch.Tensor) -> Quantized:
    """Q4u (model_spec 3.0): (e2m1 as int8 [n, h, d / 2], two values a byte, and uint8 [n, h, d / 32]).

    x: bfloat16 [n, h, d], contiguous, d a multiple of 32. A NaN does not count towards its group's scale, and
    becomes +6: there is no NaN in e2m1.

    Raises:
        TypeError, ValueError: x is not as said.
    """
    check = Arguments("quantize_fp4")
    check.tensor("x", x, torch.bfloat16, ("n", "h", "d"), rows="contiguous")
    n, h, d = (check.size(letter) for letter in "nhd")
    require_groups(check, "d", d)
    values = torch.empty((n, h, d // 2), dtype=torch.int8, device=x.device)
    scales = torch.empty((n, h, d // GROUP), dtype=torch.uint8, device=x.device)
    if n * h:
        factory("quantize_fp4")()(x, values, scales)
    return values, scales
