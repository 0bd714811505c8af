"""Blocks of keys that later index layers choose from: scores, compact lengths, way back (kernel_spec A.11)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

BLOCK_SIZES = (8, 16)
SCORE_ROW_BYTES = 1024
"""Rows of scores are padded to a multiple of this, as the top-k selection reads them."""


def candidate_block_max(
    logits: torch.Tensor, valid_lens: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score of each block of `block_size` consecutive logits: its largest; the last valid block's is +inf.

    Scores of other blocks are capped at the largest finite bf16, so that the last block alone is +inf; NaN logits
    count as -inf; the sign of a zero is unspecified.

    Args:
        logits: [n, L] bf16, rows contiguous, their stride a multiple of 16.
        valid_lens: [n] int32, contiguous: valid logits of each row; clipped to [0, L].
        block_size: 8 or 16.

    Returns:
        (scores, valid blocks): bf16 [n, L / block_size rounded up, then to a multiple of 512], unspecified from
        `valid blocks` on; int32 [n].

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("candidate_block_max")
    check.tensor("logits", logits, torch.bfloat16, ("n", "L"), multiple=16)
    check.tensor("valid_lens", valid_lens, torch.int32, ("n",), rows="contiguous")
    check.one_of("block_size", block_size, BLOCK_SIZES)
    rows, length = check.size("n"), check.size("L")
    blocks, unit = -(-length // block_size), SCORE_ROW_BYTES // 2
    storage = torch.empty((rows, -(-blocks // unit) * unit), dtype=torch.bfloat16, device=logits.device)
    valid_blocks = torch.empty(-(-rows // 4) * 4, dtype=torch.int32, device=logits.device)
    factory("candidate_block_max_tl")(length, block_size)(logits, valid_lens, storage[:, :blocks], valid_blocks)
    return storage, valid_blocks[:rows]


def get_candidate_compact_lens(
    candidate_blocks: torch.Tensor, valid_lens: torch.Tensor, block_size: int
) -> torch.Tensor:
    """How many keys the chosen blocks of a row hold: the sum over blocks b >= 0 of clamp(valid_len - b*bs, 0, bs).

    Args:
        candidate_blocks: [n, K] int32, rows contiguous, their stride a multiple of 8; negative = none.
        valid_lens: [n] int32, contiguous.
        block_size: 8 or 16.

    Returns:
        [n] int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("get_candidate_compact_lens")
    check.tensor("candidate_blocks", candidate_blocks, torch.int32, ("n", "K"), multiple=8)
    check.tensor("valid_lens", valid_lens, torch.int32, ("n",), rows="contiguous")
    check.one_of("block_size", block_size, BLOCK_SIZES)
    lengths = torch.empty_like(valid_lens)
    factory("get_candidate_compact_lens_tl")(check.size("K"), block_size)(candidate_blocks, valid_lens, lengths)
    return lengths


def restore_candidate_indices_inplace(
    compact_indices: torch.Tensor,
    candidate_blocks: torch.Tensor,
    block_size: int,
    output_idx_offset: torch.Tensor | None = None,
) -> None:
    """In place: a column x of the compact axis becomes block*bs + x % bs (+ the row's offset), anything else -1.

    block = candidate_blocks[row, x // bs]; x is valid where 0 <= x < K*bs and block >= 0.

    Args:
        compact_indices: [n, T] int32, rows contiguous, their stride a multiple of 8: in and out.
        candidate_blocks: [n, K] int32, likewise.
        block_size: 8 or 16.
        output_idx_offset: [n] int32, contiguous, or None.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("restore_candidate_indices_inplace")
    check.tensor("compact_indices", compact_indices, torch.int32, ("n", "T"), multiple=8)
    check.tensor("candidate_blocks", candidate_blocks, torch.int32, ("n", "K"), multiple=8)
    check.one_of("block_size", block_size, BLOCK_SIZES)
    check.optional("output_idx_offset", output_idx_offset, torch.int32, ("n",), rows="contiguous")
    parameters = (check.size("T"), check.size("K"), block_size, output_idx_offset is not None)
    kernel = factory("restore_candidate_indices_inplace_tl")(*parameters)
    kernel(compact_indices, candidate_blocks, output_idx_offset)
