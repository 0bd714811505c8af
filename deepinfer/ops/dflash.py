"""The draft model's confidence and its tap of the target's features (kernel_spec A.8)."""

from __future__ import annotations

import math

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def confidence_head_fused(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    temperature: float,
    markov_emb: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """How likely each draft is accepted: sigmoid(clamp(([hidden | markov_emb] . weight) / temperature, -60, 60)).

    The sum is float32 in an order that depends on nothing but the widths: the same bits every time, whatever the
    number of rows.

    Args:
        hidden: [N, n_embed] bf16, rows contiguous, their stride a multiple of 8.
        weight: bf16 of n_embed + rank elements, contiguous, of any shape.
        temperature: a positive finite number.
        markov_emb: [N, rank] bf16, rows contiguous, or None (rank 0).
        out: [N] float32 of any stride; made when it is None.

    Returns:
        out: [N] float32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("confidence_head_fused")
    check.tensor("hidden", hidden, torch.bfloat16, ("N", "n_embed"), multiple=8)
    check.optional("markov_emb", markov_emb, torch.bfloat16, ("N", "rank"))
    width, rank = check.size("n_embed"), 0 if markov_emb is None else check.size("rank")
    check.require(isinstance(weight, torch.Tensor), "weight", "must be a tensor")
    check.tensor("weight", weight, torch.bfloat16, (None,) * weight.dim(), rows="contiguous")
    check.require(weight.numel() == width + rank, "weight", f"must have {width + rank} elements, not {weight.numel()}")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise TypeError(f"confidence_head_fused: temperature must be a number, not {type(temperature).__name__}")
    positive = math.isfinite(temperature) and temperature > 0
    check.require(positive, "temperature", f"must be positive and finite, not {temperature}")
    if out is None:
        out = torch.empty(check.size("N"), dtype=torch.float32, device=hidden.device)
    check.tensor("out", out, torch.float32, ("N",), rows="any")
    kernel = factory("confidence_head_fused_tl")(width, rank, markov_emb is not None)
    kernel(hidden, markov_emb, weight.view(-1), out, float(temperature))
    return out


def dflash_input_store(hidden_states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Mean over the residual streams: bf16(float32 sum over hc_mult * (1 / hc_mult)); one stream is copied.

    Args:
        hidden_states: [N, hc_mult, n_embed] bf16, contiguous.
        out: [N, n_embed] bf16, rows contiguous, their stride a multiple of 4 (columns of a wider buffer, of which
            no others are touched); made when it is None.

    Returns:
        out: [N, n_embed] bf16.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("dflash_input_store")
    check.tensor("hidden_states", hidden_states, torch.bfloat16, ("N", "hc_mult", "n_embed"), rows="contiguous")
    rows, streams, width = (check.size(letter) for letter in ("N", "hc_mult", "n_embed"))
    check.require(streams >= 1, "hidden_states", "must have at least one residual stream")
    if out is None:
        out = torch.empty((rows, width), dtype=torch.bfloat16, device=hidden_states.device)
    check.tensor("out", out, torch.bfloat16, ("N", "n_embed"), multiple=4)
    factory("dflash_input_store_tl")(width, streams)(hidden_states, out)
    return out
