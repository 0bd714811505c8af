"""Products with the model's weights: FP8 by 32x32 blocks, FP8 group by group, bfloat16 (model_spec 2.2, 3.0, 3.3).

FP8 activations are a pair: `values` e4m3 and `scales` uint8, one power of two (byte - 127) per 32 columns of a row.
Every dequantised operand is exact in bfloat16 (for scales' bytes from 10 to 246, beyond which its range ends), so
products are exact; sums are float32, taken in an order that depends on the width of a row alone: a row's result has
the same bits alone and in any batch.
"""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

OUT_DTYPES = (torch.bfloat16, torch.float32)
GROUP = 32
"""Columns (and rows of a weight) that share a scale."""


def fp8_linear(
    values: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The dequantised rows times the dequantised weight, transposed: [n, o] (L8 of model_spec 3.0, behind its Q8).

    Args:
        values, scales: e4m3 [n, k] and uint8 [n, k / 32], contiguous; k a multiple of 32.
        weight, weight_scales: e4m3 [o, k] and uint8 [ceil(o / 32), k / 32], contiguous; the weight starts at a multiple
            of 4 bytes.
        out_dtype: bfloat16 (rounded once from float32) or float32.
        out: [n, o] contiguous of that dtype; made when it is None.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("fp8_linear")
    check.one_of("out_dtype", out_dtype, OUT_DTYPES)
    check.tensor("values", values, torch.float8_e4m3fn, ("n", "k"), rows="contiguous")
    check.tensor("weight", weight, torch.float8_e4m3fn, ("o", "k"), rows="contiguous")
    n, k, o = (check.size(letter) for letter in "nko")
    require_groups(check, "k", k)
    require_start(check, "weight", weight, 4)
    check.tensor("scales", scales, torch.uint8, ("n", k // GROUP), rows="contiguous")
    check.tensor("weight_scales", weight_scales, torch.uint8, (-(-o // GROUP), k // GROUP), rows="contiguous")
    if out is None:
        out = torch.empty((n, o), dtype=out_dtype, device=values.device)
    check.tensor("out", out, out_dtype, ("n", "o"), rows="contiguous")
    if out.numel():
        factory("fp8_linear")(o, k, out_dtype)(values, scales, weight, weight_scales, out)
    return out


def fp8_grouped_linear(
    values: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Each group of a row times its own rows of the weight (model_spec 3.3, step 7): bfloat16 [n, g * o].

    Args:
        values, scales: e4m3 [n, g, k] and uint8 [n, g, k / 32], contiguous; k a multiple of 32.
        weight, weight_scales: e4m3 [g * o, k] and uint8 [g * o / 32, k / 32], contiguous; o a multiple of 32. Group i
            has the rows from i * o on, whose products are the columns from i * o on of the result. The weight starts at
            a multiple of 4 bytes.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("fp8_grouped_linear")
    check.tensor("values", values, torch.float8_e4m3fn, ("n", "g", "k"), rows="contiguous")
    check.tensor("weight", weight, torch.float8_e4m3fn, ("o", "k"), rows="contiguous")
    n, groups, k, outputs = (check.size(letter) for letter in "ngko")
    require_groups(check, "k", k)
    require_start(check, "weight", weight, 4)
    check.require(groups > 0 and outputs % (groups * GROUP) == 0, "weight", f"must have a multiple of 32 rows for each "
                  f"of {groups} groups, not {outputs} in all")  # fmt: skip
    check.tensor("scales", scales, torch.uint8, ("n", "g", k // GROUP), rows="contiguous")
    check.tensor("weight_scales", weight_scales, torch.uint8, (outputs // GROUP, k // GROUP), rows="contiguous")
    out = torch.empty((n, outputs), dtype=torch.bfloat16, device=values.device)
    if out.numel():
        factory("fp8_grouped_linear")(groups, outputs // groups, k)(values, scales, weight, weight_scales, out)
    return out


def bf16_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    accumulate_into: torch.Tensor | None = None,
) -> torch.Tensor:
    """x times the weight, transposed: [n, o] (LB of model_spec 3.0).

    Args:
        x: bfloat16 [n, k], contiguous; k a multiple of 32.
        weight: bfloat16 [o, k], contiguous; any o.
        out_dtype: bfloat16 (rounded once from float32) or float32.
        accumulate_into: float32 [n, o], contiguous, with out_dtype float32: each finished sum is added to it by one
            float32 addition, in place, and it is returned.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("bf16_linear")
    check.one_of("out_dtype", out_dtype, OUT_DTYPES)
    check.tensor("x", x, torch.bfloat16, ("n", "k"), rows="contiguous")
    check.tensor("weight", weight, torch.bfloat16, ("o", "k"), rows="contiguous")
    n, k, o = (check.size(letter) for letter in "nko")
    require_groups(check, "k", k)
    if accumulate_into is not None:
        check.require(out_dtype == torch.float32, "out_dtype", "must be float32 where accumulate_into is given")
        check.tensor("accumulate_into", accumulate_into, torch.float32, ("n", "o"), rows="contiguous")
    out = torch.empty((n, o), dtype=out_dtype, device=x.device) if accumulate_into is None else accumulate_into
    if out.numel():
        factory("bf16_linear")(k, out_dtype, accumulate_into is not None)(x, weight, out)
    return out


def require_groups(check: Arguments, name: str, columns: int) -> None:
    """Refuse a row that is no whole number of groups of 32, or empty."""
    check.require(columns > 0 and columns % GROUP == 0, name, f"must be a multiple of {GROUP}, not {columns}")


def require_start(check: Arguments, name: str, value: torch.Tensor, multiple: int) -> None:
    """Refuse a tensor of bytes of which kernels read several at once, where it does not start at a multiple of them."""
    check.require(value.storage_offset() % multiple == 0, name, f"must start at a multiple of {multiple} bytes of its "
                  f"storage, not at {value.storage_offset()}")  # fmt: skip
