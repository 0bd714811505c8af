"""The best columns of rows of scores (model_spec 3.5, 3.6)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

SCORE_DTYPES = (torch.float32, torch.bfloat16)
MOST_CHOSEN = 4096
MOST_COLUMNS = 2**24
BLOCK_SIZES = (8, 16)


def select_topk(scores: torch.Tensor, lengths: torch.Tensor, k: int) -> torch.Tensor:
    """The columns of the `k` largest scores of each row among its first `lengths` ones, ascending, -1 at the end.

    Exact: of equal scores (both zeros are equal) the lower columns are taken. Scores of minus infinity and NaN are
    never taken, plus infinity is. A row's result does not depend on the other rows, nor on what lies beyond its
    length. Rows wider than 16384 need scratch of 4 k bytes for each 16384 of their columns.

    Args:
        scores: [n, w] float32 or bfloat16, rows contiguous at any stride; w at most 2^24. They are read fastest where
            w is a multiple of 8 and the stride one of 16.
        lengths: [n] int32, contiguous; clipped to [0, w].
        k: 1 to 4096.

    Returns:
        [n, k] int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("select_topk")
    check.tensor("scores", scores, SCORE_DTYPES, ("n", "w"))
    check.tensor("lengths", lengths, torch.int32, ("n",), rows="contiguous")
    check.whole_number("k", k, at_least=1, at_most=MOST_CHOSEN)
    width = check.size("w")
    check.require(width <= MOST_COLUMNS, "scores", f"must have at most {MOST_COLUMNS} columns, not {width}")
    columns = torch.empty((check.size("n"), k), dtype=torch.int32, device=scores.device)
    factory("select_topk")(k)(scores, lengths, columns)
    return columns


def block_maxima(logits: torch.Tensor, lengths: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Score of each block of `block_size` consecutive logits: its largest, and plus infinity for the last block.

    As `candidate_block_max`, for float32, without rounding: only logits below a row's length count, the last block is
    the one that holds the last of them, and a NaN counts as minus infinity. `select_topk` of the result gives the
    candidate blocks.

    Args:
        logits: [n, w] float32, rows contiguous at any stride; w at most 2^24.
        lengths: [n] int32, contiguous; clipped to [0, w].
        block_size: 8 or 16.

    Returns:
        (scores, blocks): float32 [n, w / block_size rounded up], minus infinity behind a row's last block, its rows a
        multiple of 16 apart; int32 [n], how many blocks a row has. The sign of a zero is unspecified.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("block_maxima")
    check.tensor("logits", logits, torch.float32, ("n", "w"))
    check.tensor("lengths", lengths, torch.int32, ("n",), rows="contiguous")
    check.one_of("block_size", block_size, BLOCK_SIZES)
    n, width = check.size("n"), check.size("w")
    check.require(width <= MOST_COLUMNS, "logits", f"must have at most {MOST_COLUMNS} columns, not {width}")
    count = -(-width // block_size)
    scores = torch.empty((n, -(-count // 16) * 16), dtype=torch.float32, device=logits.device)[:, :count]
    blocks = torch.empty(n, dtype=torch.int32, device=logits.device)
    factory("block_maxima")(block_size)(logits, lengths, scores, blocks)
    return scores, blocks
