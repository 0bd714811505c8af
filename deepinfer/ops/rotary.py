"""Rotary embedding of queries and index queries, and of attention's output on its way back (model_spec 3.0, 3.3)."""

from __future__ import annotations

import torch

from deepinfer.ops.activation import Quantized
from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory
from deepinfer.ops.linear import GROUP

ROTATED = 64
"""Columns of a head that are rotated: its last ones, in pairs (2j, 2j + 1)."""
HEAD = 512
_INTEGERS = (torch.int32, torch.int64)


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    inverse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The last 64 columns of every head, rotated by its row's position: bfloat16 [n, h, d] (model_spec 3.0, 6.2).

    (a, b) -> (a c - b s, a s + b c) in float32, the second product of each joined by one fused multiply-add, rounded
    once to bfloat16. Rows at a position without a table row stay as they are.

    Args:
        x: bfloat16 [n, h, d], d even and at least 64; heads contiguous, at any strides.
        positions: int32 or int64 [n], contiguous.
        cos_sin: float32 [P, 64], 32 cosines and then 32 sines a position; rows at any stride.
        inverse: rotate back (s -> -s).
        out: like x, of any strides; x itself: in place, which costs an eighth where d is 512. None: a new tensor. It
            must not share memory with x otherwise.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("rotate")
    check.tensor("x", x, torch.bfloat16, ("n", "h", "d"))
    d = check.size("d")
    check.require(d >= ROTATED and d % 2 == 0, "x", f"must have an even number of at least {ROTATED} columns, not {d}")
    _rows(check, positions, cos_sin)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    check.tensor("out", out, torch.bfloat16, ("n", "h", "d"))
    in_place = out.data_ptr() == x.data_ptr()
    check.require(not in_place or out.stride() == x.stride(), "out", "must have x's strides where it begins as x does")
    if x.numel():
        factory("rotate")(inverse)(x, positions, cos_sin, out)
    return out


def rotate_heads_quantize(o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, groups: int) -> Quantized:
    """Attention's output rotated back by its row's position, and Q8 of that, all from float32 (model_spec 3.3, 6 to 7).

    Rows at a position without a table row are quantised as they are.

    Args:
        o: float32 [n, h, 512], contiguous.
        positions, cos_sin: as `rotate` takes them.
        groups: of heads that are projected together; h is a multiple.

    Returns:
        e4m3 [n, groups, h / groups * 512] and its scales, uint8 [n, groups, h / groups * 16].

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("rotate_heads_quantize")
    n, h = check_heads(check, o, positions, cos_sin, groups)
    width = h // groups * HEAD
    values = torch.empty((n, groups, width), dtype=torch.float8_e4m3fn, device=o.device)
    scales = torch.empty((n, groups, width // GROUP), dtype=torch.uint8, device=o.device)
    if o.numel():
        factory("rotate_heads_quantize")()(o, positions, cos_sin, values, scales)
    return values, scales


def check_heads(
    check: Arguments, o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, groups: int
) -> tuple[int, int]:
    """Rows and heads of an attention's output that is rotated back and quantised, its arguments being right.

    Raises:
        TypeError, ValueError: an argument is not as `rotate_heads_quantize` says.
    """
    check.tensor("o", o, torch.float32, ("n", "h", HEAD), rows="contiguous")
    n, h = check.size("n"), check.size("h")
    check.whole_number("groups", groups, at_least=1)
    check.require(h % groups == 0, "o", f"must have a multiple of {groups} heads (groups), not {h}")
    _rows(check, positions, cos_sin)
    return n, h


def _rows(check: Arguments, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
    check.tensor("positions", positions, _INTEGERS, ("n",), rows="contiguous")
    check.tensor("cos_sin", cos_sin, torch.float32, (None, ROTATED))
