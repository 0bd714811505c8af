"""Log-probabilities as they are told: of one token a row, its rank, and the likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.engine.outputs import TokenLogprobs
from deepinfer.ops.fused_sample import LogitsTransformInputs, fused_sample
from deepinfer.ops.selection import select_topk

LOWEST = -9999.0
"""What is told of a token without any probability, so that every value is a number (kernel_spec B.4)."""


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Log-softmax of rows, the same bits alone and in any batch: [n, V] f32 as `fused_sample` takes them.

    A row with a NaN, +inf or no finite logit is NaN throughout.
    """
    count, device = logits.shape[0], logits.device
    ones = torch.ones(count, dtype=torch.float32, device=device)
    everything = torch.full((count,), -1, dtype=torch.int32, device=device)
    return fused_sample(logits, LogitsTransformInputs(ones, ones, everything))[0]


@dataclass(frozen=True)
class Ranking:
    """Tokens' log-probabilities on their way to the host.

    table: [n, 3 + 2 * most] f64, which holds ids, ranks and f32 values exactly: token, log-probability, rank, then the
    likeliest ids and their log-probabilities, -inf where there are no more. tops: how many of these each row tells.
    """

    table: torch.Tensor
    tops: tuple[int, ...]

    @classmethod
    def of(cls, values: torch.Tensor, order: torch.Tensor, tokens: torch.Tensor, tops: Sequence[int]) -> Ranking:
        """Rank tokens; nothing waits for the device.

        Args:
            values: [n, V] f32 log-probabilities.
            order: [n, V] f32, the logits that they come from: likelier is larger, and of equal ones the lower id, as
                in sampling. Rounding makes equal values of different logits.
            tokens: [n] int32; -1 gives a row without meaning.
            tops: of how many likeliest tokens each row tells.
        """
        most = max(tops, default=0)
        column = tokens.clamp(min=0).long()[:, None]
        own = order.gather(1, column)
        ahead = torch.arange(order.shape[1], device=order.device) < column
        ranks = 1 + (order > own).sum(1, keepdim=True) + ((order == own) & ahead).sum(1, keepdim=True)
        parts = [tokens[:, None], values.gather(1, column), ranks]
        if most:
            lengths = torch.full((order.shape[0],), order.shape[1], dtype=torch.int32, device=order.device)
            found = select_topk(order, lengths, most)
            there = found.clamp(min=0).long()
            scores = order.gather(1, there).masked_fill(found < 0, -torch.inf)
            best = scores.argsort(dim=1, descending=True, stable=True)
            there = there.gather(1, best)
            parts += [there, values.gather(1, there).masked_fill(found.gather(1, best) < 0, -torch.inf)]
        return cls(torch.cat([part.double() for part in parts], 1), tuple(tops))

    def read(self) -> list[TokenLogprobs]:
        """The rows on the host; this waits for the device."""
        most = (self.table.shape[1] - 3) // 2
        told = []
        for row, top in zip(self.table.tolist(), self.tops, strict=True):
            ids, values = row[3 : 3 + most], row[3 + most :]
            best = tuple((int(a), _floored(b)) for a, b in zip(ids[:top], values[:top], strict=True) if b > -torch.inf)
            told.append(TokenLogprobs(int(row[0]), _floored(row[1]), int(row[2]), best))
        return told


def _floored(value: float) -> float:
    """A log-probability, LOWEST for less; NaN stays."""
    return LOWEST if value < LOWEST else value
