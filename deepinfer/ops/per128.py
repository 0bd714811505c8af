"""Activations with a scale per 128 columns, as DeepGEMM's FP8 products on Hopper take them, and their rows' order.

The cast is Q8 of model_spec 3.0 with 128 columns to a scale in the place of 32: scales are powers of two, here as
float32. They lie column by column, each column padded to a multiple of 4 rows: scales[row, group] of a tensor with the
strides (1, rows padded). What pads is not written.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.linear import GROUP
from deepinfer.ops.rotary import HEAD, check_heads

WIDE = 128
"""Columns that share a scale."""
ALIGNMENTS = (64, 128)
"""Rows that an expert's part may be padded to."""


class PerWide(NamedTuple):
    """values: e4m3 [n, k]. scales: float32 [n, k / 128], column by column."""

    values: torch.Tensor
    scales: torch.Tensor


class ExpertRows(NamedTuple):
    """Rows of the experts, each expert's part beginning at a multiple of an alignment.

    ends: int32 [experts], where an expert's rows end; those of one that has none, where they would begin.
    choices: int32 [rows], the flat choice (row * topk + rank) that a row is for; -1: it is for none.
    """

    ends: torch.Tensor
    choices: torch.Tensor


def quantize_per128(x: torch.Tensor, choices: torch.Tensor | None = None, topk: int = 1) -> PerWide:
    """Rows of x quantised: all, or row choices[i] // topk for each i.

    Args:
        x: bfloat16 or float32 [n, k], rows contiguous at any stride, k a multiple of 128.
        choices: int32 [p], contiguous, as `expert_rows` gives them. Rows of no choice, or of one outside [0, n * topk),
            are left as they are, which may be anything.
        topk: choices a row, at least 1.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("quantize_per128")
    check.tensor("x", x, (torch.bfloat16, torch.float32), ("n", "k"))
    check.optional("choices", choices, torch.int32, ("p",), rows="contiguous")
    check.whole_number("topk", topk, at_least=1)
    check.require(choices is not None or topk == 1, "topk", "goes with choices")
    k = _whole(check, "x", check.size("k"))
    found = _empty(check.size("n") if choices is None else check.size("p"), k, x.device)
    if found.values.numel():
        factory("quantize_per128")(choices is not None)(x, choices, topk, *found)
    return found


def swiglu_per128(
    gate_up: torch.Tensor, limit: float, weights: torch.Tensor | None = None, choices: torch.Tensor | None = None
) -> PerWide:
    """As `activation.swiglu_quantize`, of the routed experts with the weight weights[choices[i]] for row i.

    Args:
        gate_up: bfloat16 [m, 2 f], contiguous: g and then u; f a multiple of 128.
        limit: above 0, and finite.
        weights: float32 [w], contiguous. choices: int32 [m], contiguous, as `expert_rows` gives them. Both or neither.
            Rows of no choice, or of one outside [0, w), are left as they are, which may be anything.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("swiglu_per128")
    check.tensor("gate_up", gate_up, torch.bfloat16, ("m", "2f"), rows="contiguous")
    check.require(0 < limit < math.inf, "limit", f"must be above 0 and finite, not {limit}")
    check.require((weights is None) == (choices is None), "choices", "goes with weights: both or neither")
    check.optional("weights", weights, torch.float32, ("w",), rows="contiguous")
    check.optional("choices", choices, torch.int32, ("m",), rows="contiguous")
    both = check.size("2f")
    check.require(both > 0 and both % (2 * WIDE) == 0, "gate_up", f"must have a multiple of 256 columns, not {both}")
    found = _empty(check.size("m"), both // 2, gate_up.device)
    if found.values.numel():
        factory("swiglu_per128")(weights is not None)(gate_up, float(limit), weights, choices, *found)
    return found


def rotate_heads_per128(o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, groups: int) -> PerWide:
    """As `rotary.rotate_heads_quantize`: e4m3 [n, groups, h / groups * 512], and its scales.

    Args:
        o: float32 [n, h, 512], contiguous. positions: int32 or int64 [n], contiguous.
        cos_sin: float32 [P, 64], rows at any stride. groups: of heads; h is a multiple.

    Returns:
        The scales are float32 [n, groups, each], each = h / groups * 4, with the strides (1, each * rows padded, rows
        padded).

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("rotate_heads_per128")
    n, h = check_heads(check, o, positions, cos_sin, groups)
    check.require(h > 0, "o", "must have heads")
    values, scales = _empty(n, h * HEAD, o.device)
    if n:
        factory("rotate_heads_per128")()(o, positions, cos_sin, values, scales)
    stride, each = scales.stride(1), scales.shape[1] // groups
    return PerWide(values.view(n, groups, -1), scales.as_strided((n, groups, each), (1, each * stride, stride)))


def regroup_per128(values: torch.Tensor, scales: torch.Tensor) -> PerWide:
    """Rows that have a scale per 32 columns, quantised anew from their exact values.

    A power of two divides exactly: what changes is what becomes a subnormal number, below 2^-13 of the largest of its
    128 columns.

    Args:
        values, scales: e4m3 [n, k] and uint8 [n, k / 32], contiguous; k a multiple of 128.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("regroup_per128")
    check.tensor("values", values, torch.float8_e4m3fn, ("n", "k"), rows="contiguous")
    n, k = check.size("n"), _whole(check, "values", check.size("k"))
    check.tensor("scales", scales, torch.uint8, ("n", k // GROUP), rows="contiguous")
    found = _empty(n, k, values.device)
    if n:
        factory("regroup_per128")()(values, scales, *found)
    return found


def expert_rows(order: torch.Tensor, offsets: torch.Tensor, alignment: int) -> ExpertRows:
    """Room for the experts' rows, each expert's part padded to a multiple of `alignment`.

    There are as many rows as that can take at most, whatever was routed where: see `most_expert_rows`.

    Args:
        order: int32 [p], contiguous, and offsets: int32 [experts + 1], contiguous, as `experts.expert_order` gives
            them.
        alignment: 64 or 128.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("expert_rows")
    check.tensor("order", order, torch.int32, ("p",), rows="contiguous")
    check.tensor("offsets", offsets, torch.int32, ("E+1",), rows="contiguous")
    check.one_of("alignment", alignment, ALIGNMENTS)
    experts = check.whole_number("E", check.size("E+1") - 1, at_least=1, at_most=4095)
    rows = most_expert_rows(len(order), experts, alignment)
    ends = torch.empty(experts, dtype=torch.int32, device=order.device)
    choices = torch.empty(rows, dtype=torch.int32, device=order.device)
    factory("expert_rows")(experts, alignment)(order, offsets, ends, choices)
    return ExpertRows(ends, choices)


def most_expert_rows(choices: int, experts: int, alignment: int) -> int:
    """Rows that so many choices of so many experts take at most, each expert's part padded to the alignment."""
    parts = min(choices, experts)
    return (choices + parts * (alignment - 1)) // alignment * alignment


def column_scales(rows: int, columns: int, device: torch.device | str) -> torch.Tensor:
    """Room for float32 scales [rows, columns], column by column."""
    return torch.empty((columns, -(-rows // 4) * 4), dtype=torch.float32, device=device).T[:rows]


def _empty(rows: int, columns: int, device: torch.device) -> PerWide:
    values = torch.empty((rows, columns), dtype=torch.float8_e4m3fn, device=device)
    return PerWide(values, column_scales(rows, columns // WIDE, device))


def _whole(check: Arguments, name: str, columns: int) -> int:
    check.require(columns > 0 and columns % WIDE == 0, name, f"must have a multiple of {WIDE} columns, not {columns}")
    return columns
