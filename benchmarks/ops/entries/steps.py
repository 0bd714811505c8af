"""What a decode step looks like: requests with a token and its drafts each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.ops.entry import Inputs
from benchmarks.ops.model import DRAFTS


@dataclass(frozen=True)
class Step:
    """`rows` query rows: every request has 1 + DRAFTS, the last one what is left.

    first: [R] each request's first row. ends: [R] inclusive sums. request, local: [rows].
    """

    lengths: torch.Tensor
    first: torch.Tensor
    ends: torch.Tensor
    request: torch.Tensor
    local: torch.Tensor

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return self.lengths.shape[0]

    @property
    def verify(self) -> torch.Tensor:
        """[rows] bool: whether a row has a draft to verify."""
        return self.local + 1 < self.lengths[self.request.long()]


def step(rows: int, inputs: Inputs) -> Step:
    """A step of `rows` query rows."""
    longest = DRAFTS + 1
    row = inputs.range(rows)
    first = inputs.range(-(-rows // longest), longest)
    lengths = (rows - first).clamp(max=longest)
    return Step(lengths, first, first + lengths, row // longest, row % longest)
