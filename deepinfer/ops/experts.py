"""The routed experts: rows sorted by expert, grouped FP4 products, and the sum of the experts (model_spec 2.3, 3.9).

Sizes depend on data nowhere: whatever was routed where, the same tensors are made and the same programs started, so
that a step can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.linear import GROUP, require_groups, require_start

MOST_EXPERTS = 4095


def expert_order(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The choices of all rows, sorted by expert: (order int32 [n * topk], offsets int32 [experts + 1]).

    order: flat choices (row * topk + rank), by expert and within one by themselves; -1 behind the last of them.
    offsets: the choices of expert e are order[offsets[e] : offsets[e + 1]].

    Args:
        ids: int32 [n, topk], contiguous; what is outside [0, experts), as -1, is no choice and left out.
        experts: how many there are, 1 to 4095.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("expert_order")
    check.tensor("ids", ids, torch.int32, ("n", "topk"), rows="contiguous")
    check.whole_number("experts", experts, at_least=1, at_most=MOST_EXPERTS)
    order = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    offsets = torch.empty(experts + 1, dtype=torch.int32, device=ids.device)
    factory("expert_order")(experts)(ids, order, offsets)
    return order, offsets


def expert_linear(
    values: torch.Tensor,
    scales: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
) -> torch.Tensor:
    """Rows times their experts' weights, transposed: bfloat16 [p, o], rounded once from float32 sums.

    Position i belongs to the expert e with offsets[e] <= i < offsets[e + 1]. It is 0 where it belongs to none, or its
    row is outside [0, m). Products are exact; a row's result has the same bits in any batch.

    Args:
        values, scales: e4m3 [m, k] and uint8 [m, k / 32], contiguous; k a multiple of 32.
        rows: int32 [p], contiguous: which row of `values` a position takes.
        offsets: int32 [E + 1], contiguous, from 0 upwards, as `expert_order` gives them.
        weight, weight_scales: e2m1 as int8 [E, o, k / 2], the lower half of a byte first, and uint8 [E, o, k / 32],
            contiguous; the weight starts at a multiple of 2 bytes.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("expert_linear")
    check.tensor("values", values, torch.float8_e4m3fn, ("m", "k"), rows="contiguous")
    k = check.size("k")
    require_groups(check, "k", k)
    check.tensor("scales", scales, torch.uint8, ("m", k // GROUP), rows="contiguous")
    check.tensor("rows", rows, torch.int32, ("p",), rows="contiguous")
    check.tensor("weight", weight, torch.int8, ("E", "o", k // 2), rows="contiguous")
    require_start(check, "weight", weight, 2)
    check.tensor("weight_scales", weight_scales, torch.uint8, ("E", "o", k // GROUP), rows="contiguous")
    experts, o = check.whole_number("E", check.size("E"), at_least=1, at_most=MOST_EXPERTS), check.size("o")
    check.tensor("offsets", offsets, torch.int32, (experts + 1,), rows="contiguous")
    out = torch.empty((len(rows), o), dtype=torch.bfloat16, device=values.device)
    if out.numel():
        factory("expert_linear")(experts, o, k)(values, scales, rows, offsets, weight, weight_scales, out)
    return out


def combine(shared: torch.Tensor, routed: torch.Tensor, order: torch.Tensor, topk: int) -> torch.Tensor:
    """The shared expert plus a row's routed ones, rank after rank in float32, rounded once: bfloat16 [n, d].

    Args:
        shared: bfloat16 [n, d], contiguous.
        routed: bfloat16 [p, d], contiguous, p at least n * topk: position i is that of the choice order[i].
        order: int32 [p], contiguous, as `expert_order` or `per128.expert_rows` gives it; -1 is no choice, and choices
            that it lacks add nothing.
        topk: choices a row, 1 to 64.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("combine")
    check.whole_number("topk", topk, at_least=1, at_most=64)
    check.tensor("shared", shared, torch.bfloat16, ("n", "d"), rows="contiguous")
    n, d = check.size("n"), check.size("d")
    check.tensor("routed", routed, torch.bfloat16, ("p", d), rows="contiguous")
    check.require(len(routed) >= n * topk, "routed", f"must have {n * topk} rows at least, not {len(routed)}")
    check.tensor("order", order, torch.int32, ("p",), rows="contiguous")
    out = torch.empty_like(shared)
    if out.numel():
        factory("combine")(topk)(shared, routed, order, out)
    return out
