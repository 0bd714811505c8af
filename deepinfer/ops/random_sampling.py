"""Tokens drawn from rows of probabilities (kernel_spec A.2, B.2)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

SEED_TYPES = (torch.uint64, torch.int64)


def random_sampling(
    probs: torch.Tensor, seq_seeds: torch.Tensor, sample_positions: torch.Tensor, *, is_nextn_predict: bool = False
) -> torch.Tensor:
    """A token of each row: a pure function of the row, its seed and its position, whatever else is in the batch.

    Probabilities count in steps of 2^-31; smaller ones are never drawn. A row without mass, with a NaN, with a value
    of 2 or more, or with a sum of 2 or more gives -1 and leaves the other rows as they are; negative values count as 0.
    Nothing is asserted on the device.

    Args:
        probs: [N, V] f32, not negative, rows with a sum of at most 1; row stride a multiple of 8.
        seq_seeds: [N] uint64 or int64; all 64 bits count.
        sample_positions: [N] int32.
        is_nextn_predict: draw from the stream that follows a rejection.

    Returns:
        [N] int32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("random_sampling")
    check.tensor("probs", probs, torch.float32, ("N", "V"), multiple=8)
    check.tensor("seq_seeds", seq_seeds, SEED_TYPES, ("N",), rows="any")
    check.tensor("sample_positions", sample_positions, torch.int32, ("N",), rows="any")
    check.require(check.size("V") > 0, "probs", "must have at least one column")
    out = torch.empty(check.size("N"), dtype=torch.int32, device=probs.device)
    factory("random_sampling_tl")(check.size("V"), bool(is_nextn_predict))(probs, seq_seeds, sample_positions, out)
    return out
