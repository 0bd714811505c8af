"""The probability of all tokens that are no likelier than the sampled one (kernel_spec A.4)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory


def sum_smaller_probs(logprobs: torch.Tensor, sample_results: torch.Tensor) -> torch.Tensor:
    """Sum of exp(lp_j) over the tokens with lp_j < lp_t, and those equal to it with j <= t, where t is the row's token.

    0 where t is negative or no column, and where lp_t is NaN.

    Args:
        logprobs: [N, V] f32, row stride a multiple of 8.
        sample_results: [N] int32, the tokens.

    Returns:
        [N] f32.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("sum_smaller_probs")
    check.tensor("logprobs", logprobs, torch.float32, ("N", "V"), multiple=8)
    check.tensor("sample_results", sample_results, torch.int32, ("N",), rows="contiguous")
    check.require(check.size("V") > 0, "logprobs", "must have at least one column")
    output = torch.empty(check.size("N"), dtype=torch.float32, device=logprobs.device)
    factory("sum_smaller_probs_tl")(check.size("V"))(logprobs, sample_results, output)
    return output
