"""References of the candidate-block kernels (kernel_spec A.11)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def candidate_block_max_tl(max_model_len: int, block_size: int) -> Kernel:
    """Largest logit of each valid block, at most the largest finite bf16 (NaN: -inf); +inf for the last valid one.

    valid_blocks' padding behind the n rows becomes 0; scores behind the valid blocks stay as they are.
    """

    def run(
        logits: torch.Tensor, valid_lens: torch.Tensor, block_scores: torch.Tensor, valid_blocks: torch.Tensor
    ) -> None:
        rows, blocks = block_scores.shape
        length = valid_lens.clamp(0, max_model_len)
        valid = ((length + block_size - 1) // block_size).clamp(max=blocks)
        valid_blocks.zero_()
        valid_blocks[:rows] = valid
        for row, count in enumerate(valid.tolist()):
            if count:
                padded = logits.new_full((count * block_size,), -torch.inf)
                own = logits[row, : min(int(length[row]), count * block_size)]
                padded[: len(own)] = own.nan_to_num(-torch.inf, neginf=-torch.inf)
                block_scores[row, :count] = padded.view(count, block_size).amax(1)
                block_scores[row, count - 1] = torch.inf

    return run


@functools.cache
def get_candidate_compact_lens_tl(topk_blocks: int, block_size: int) -> Kernel:
    """compact_lens = sum over blocks b >= 0 of clamp(valid_len - b*bs, 0, bs)."""

    def run(candidate_blocks: torch.Tensor, valid_lens: torch.Tensor, compact_lens: torch.Tensor) -> None:
        block = candidate_blocks.long()
        held = (valid_lens[:, None] - block * block_size).clamp(0, block_size)
        compact_lens.copy_(torch.where(block >= 0, held, 0).sum(1))

    return run


@functools.cache
def restore_candidate_indices_inplace_tl(
    topk_tokens: int, topk_blocks: int, block_size: int, has_offset: bool
) -> Kernel:
    """x -> block*bs + x % bs (+ offset) with block = candidate_blocks[row, x // bs] >= 0, anything else -1."""

    def run(
        compact_indices: torch.Tensor, candidate_blocks: torch.Tensor, output_idx_offset: torch.Tensor | None
    ) -> None:
        if topk_blocks == 0:
            compact_indices.fill_(-1)
            return
        inside = (compact_indices >= 0) & (compact_indices < topk_blocks * block_size)
        block = candidate_blocks.gather(1, torch.where(inside, compact_indices // block_size, 0).long())
        restored = block * block_size + compact_indices % block_size
        if has_offset:
            assert output_idx_offset is not None
            restored += output_idx_offset[:, None]
        compact_indices.copy_(torch.where(inside & (block >= 0), restored, -1))

    return run
