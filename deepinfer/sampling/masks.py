"""Which tokens a row may draw: a grammar's bitmask, without what would end it before min_tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from deepinfer.ops.structure_output import apply_token_bitmask_by_step_inplace
from deepinfer.sampling.rows import aligned_copy


def words_of(vocab_size: int) -> int:
    """32-bit words of a bitmask over a vocabulary: token v is bit v % 32, lowest first, of word v // 32."""
    return -(-vocab_size // 32)


def allowed_tokens(vocab_size: int, mask: torch.Tensor | None, banned: Iterable[int]) -> torch.Tensor:
    """One row's bitmask: int32 [words_of(vocab_size)] on the host, bits beyond the vocabulary 0.

    Where banning leaves nothing, the ban is lifted: a grammar whose text is complete allows the end only, and a row
    without any token would be an error where the user asked for a few tokens more.

    Args:
        vocab_size: V.
        mask: int32, at most words_of(V) words, on the host; tokens beyond it are not allowed. None allows all.
        banned: token ids; those beyond the vocabulary are ignored.
    """
    row = torch.zeros(words_of(vocab_size), dtype=torch.int32)
    if mask is None:
        row.fill_(-1)
    else:
        row[: len(mask)] = mask
    if vocab_size % 32:
        row[-1] &= (1 << vocab_size % 32) - 1
    without = row.clone()
    for token in banned:
        if 0 <= token < vocab_size:
            without[token // 32] &= _without_bit(token % 32)
    return without if bool(without.any()) else row


def masked_copy(logits: torch.Tensor, masks: dict[int, torch.Tensor]) -> torch.Tensor:
    """A copy of `logits` [m, V] f32 with -inf for the tokens that are not allowed. masks: by row, `allowed_tokens`."""
    rows, width = logits.shape
    pinned = logits.device.type == "cuda"
    table = torch.empty((rows, words_of(width)), dtype=torch.int32, pin_memory=pinned)
    for row, mask in masks.items():
        table[row] = mask
    indices = torch.tensor(list(masks), dtype=torch.int32, pin_memory=pinned)
    copied = aligned_copy(logits)
    apply_token_bitmask_by_step_inplace(
        copied, table.to(logits.device, non_blocking=True), indices.to(logits.device, non_blocking=True)
    )
    return copied


def _without_bit(bit: int) -> int:
    """An int32 with every bit set but one."""
    return -(1 << bit) - 1 if bit < 31 else 2**31 - 1
