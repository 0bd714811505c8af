"""The random stream: cuRAND's Philox4x32-10 with offset 0 (kernel_spec B.2).

Words are int64 tensors with values in [0, 2^32): PyTorch's unsigned types lack most operators. A product of two words
wraps around 2^64, and its two halves are still right after the mask.
"""

from __future__ import annotations

import torch

MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def block(seeds: torch.Tensor, subsequences: torch.Tensor, number: int = 0) -> Words:
    """The four words x, y, z, w of a block of the stream.

    Args:
        seeds: any shape, uint64 or int64 (the same 64 bits); all of them are the key.
        subsequences: int64 of the same shape; counter words 3 and 4.
        number: which block, 0 <= number < 2^64; counter words 1 and 2.
    """
    seeds = seeds.view(torch.int64)
    keys = [seeds & MASK, (seeds >> 32) & MASK]
    zero = torch.zeros_like(subsequences)
    counter = (zero + (number & MASK), zero + (number >> 32), subsequences & MASK, (subsequences >> 32) & MASK)
    for _ in range(_ROUNDS):
        first, second = counter[0] * _MULTIPLIERS[0], counter[2] * _MULTIPLIERS[1]
        counter = (
            ((second >> 32) & MASK) ^ counter[1] ^ keys[0],
            second & MASK,
            ((first >> 32) & MASK) ^ counter[3] ^ keys[1],
            first & MASK,
        )
        keys = [(key + step) & MASK for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return counter


def word(seeds: torch.Tensor, subsequences: torch.Tensor, index: int) -> torch.Tensor:
    """Word `index` of each stream: x, y, z, w of block 0, then of block 1, and so on."""
    return block(seeds, subsequences, index // 4)[index % 4]


def uniform(words: torch.Tensor) -> torch.Tensor:
    """cuRAND's uniform number of a word: f32 in (0, 1]."""
    return words.float() * 2.0**-32 + 2.0**-33


def subsequence(positions: torch.Tensor, case: int) -> torch.Tensor:
    """3 * position + case in 32 bits, sign-extended. case: 0 a draw, 1 a draw from the residual, 2 acceptance."""
    return (positions.long() * 3 + case).int().long()
