"""Grammar masks on logits (kernel_spec A.4)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def apply_token_bitmask_by_step_inplace(
    logits: torch.Tensor,
    bitmask: torch.Tensor,
    indices: torch.Tensor,
    ftp: torch.Tensor | None = None,
    step: int = 0,
) -> None:
    """Sets to -inf the logits of the tokens whose bit is 0, in one row of each named request.

    The row is ftp[r] + step, or r itself without ftp. A request with no such row is left alone: one with fewer rows
    than the step asks for, a negative row, an index that is no request. Columns beyond the bitmask stay as they are.

    Args:
        logits: [L, V] f32, row stride free; changed in place.
        bitmask: [B, W] int32, row stride free; token v's bit is bit v % 32, lowest first, of word v // 32.
            W <= ceil(V / 32).
        indices: [n] int32, the requests, each at most once.
        ftp: [R] int32, each request's first row, ascending; or None.
        step: which row of the request, 0 <= step < 2^31; without ftp it has no effect.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("apply_token_bitmask_by_step_inplace")
    check.tensor("logits", logits, torch.float32, ("L", "V"))
    check.tensor("bitmask", bitmask, torch.int32, ("B", "W"))
    check.tensor("indices", indices, torch.int32, ("n",), rows="contiguous")
    check.optional("ftp", ftp, torch.int32, ("R",), rows="contiguous")
    check.whole_number("step", step, at_least=0, at_most=2**31 - 1)
    words, needed = check.size("W"), -(-check.size("V") // 32)
    check.require(words <= needed, "bitmask", f"has {words} words a row, where {needed} cover the logits")
    width = min(check.size("V"), 32 * words)
    if width > 0:
        factory("apply_token_bitmask_by_step_inplace_tl")(width, ftp is not None)(logits, bitmask, indices, ftp, step)
