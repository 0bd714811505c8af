"""Tokens from logits: masks, the kernel that draws, and what is told of log-probabilities (kernel_spec B.1, B.2, B.4).

Everything of a row is a function of that row alone, bit by bit: its logits, parameters, seed and position decide,
whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.outputs import TokenLogprobs
from deepinfer.model.transfer import to_device
from deepinfer.ops.fused_sample import LogitsTransformInputs, SamplingKernelInputs, fused_sample
from deepinfer.sampling.logprobs import Ranking, log_softmax
from deepinfer.sampling.masks import allowed_tokens, masked_copy
from deepinfer.sampling.params import SamplingParams
from deepinfer.sampling.rows import aligned

PROMPT_ROWS = 256
"""Rows of a prompt whose log-probabilities are worked out at a time: bounds the memory that this takes."""


@dataclass(frozen=True)
class SampleRow:
    """What a row of logits is sampled with.

    Args:
        params: the request's.
        seed: `params.seed_in_effect` plus the number of the completion; only the lowest 64 bits count.
        position: how many tokens stand before the one that is drawn; with the seed the key of the random stream.
        mask: the grammar's bitmask (`structured_output.Matcher.fill`): int32 [<= ceil(V / 32)] on the host, or None.
        banned: tokens not to be drawn now: those that end a text, while there are fewer than `min_tokens`.
    """

    params: SamplingParams
    seed: int
    position: int
    mask: torch.Tensor | None = None
    banned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sampled:
    """A row's token. failed: the row's logits have a NaN, +inf or nothing finite, or no token is allowed; token_id is
    -1 then.

    logprob: None where the row asked for none.
    """

    token_id: int
    logprob: TokenLogprobs | None = None
    failed: bool = False


@dataclass(frozen=True)
class Pending:
    """Rows that are being sampled: all work is queued on the device, and nothing has been waited for."""

    candidates: torch.Tensor
    rankings: tuple[tuple[tuple[int, ...], Ranking], ...]
    """Which rows of the batch each ranking has."""

    def finish(self) -> list[Sampled]:
        """The rows' tokens, when the device has them."""
        told = {row: one for rows, ranking in self.rankings for row, one in zip(rows, ranking.read(), strict=True)}
        return [
            Sampled(token, told.get(row)) if token >= 0 else Sampled(-1, failed=True)
            for row, token in enumerate(self.candidates.tolist())
        ]


class Sampler:
    """Draws tokens from logits over a vocabulary, on one device."""

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        if vocab_size < 32:
            raise ValueError(f"vocab_size must be at least 32, not {vocab_size}")
        self.vocab_size = vocab_size
        self.device = torch.device(device)

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """One token a row, waiting for the device. See `start`."""
        return self.start(logits, rows).finish()

    def start(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> Pending:
        """Queue the sampling of rows; `finish` of the result gives the tokens.

        Greedy rows take the largest logit, of equal ones the lowest id, whatever the seed. Others: temperature, then
        top-p and top-k together, then a draw. A row that cannot be sampled fails alone.

        Log-probabilities are "raw", of `logits` as they came (before masks, bans and temperature), or "processed", of
        what was drawn from. None is below `logprobs.LOWEST`.

        Args:
            logits: [m, V] f32; never changed.
            rows: m of them.

        Raises:
            TypeError, ValueError: logits are not as said, or rows are not as many.
        """
        self._check(logits, len(rows))
        if not rows:
            return Pending(torch.empty(0, dtype=torch.int32), ())
        logits = aligned(logits)
        masks = {
            row: allowed_tokens(self.vocab_size, one.mask, one.banned)
            for row, one in enumerate(rows)
            if one.mask is not None or one.banned
        }
        drawn_from = masked_copy(logits, masks) if masks else logits
        logprobs, candidates = fused_sample(drawn_from, self._limits(rows))[:2]
        assert candidates is not None
        if masks:
            # A mask may hide what is wrong with a row.
            candidates = candidates.masked_fill(~logits.amax(1).isfinite(), -1)
        rankings = []
        for mode, values, order in (("raw", None, logits), ("processed", logprobs, drawn_from)):
            told = [i for i, one in enumerate(rows) if _told(one.params) and one.params.logprobs_mode == mode]
            if told:
                tops = [rows[i].params.logprobs or 0 for i in told]
                rankings.append((tuple(told), self._ranked(values, order, candidates, told, tops)))
        return Pending(candidates, tuple(rankings))

    def prompt_logprobs(
        self, logits: torch.Tensor, next_ids: Sequence[int], top: int, *, processed: SamplingParams | None = None
    ) -> list[TokenLogprobs | None]:
        """Log-probabilities of a prompt's tokens.

        Args:
            logits: [n, V] f32; row i is of the token before next_ids[i].
            next_ids: n tokens of the prompt, its first one being in no row.
            top: of how many likeliest tokens beside to tell.
            processed: tell what is left after this temperature, top_p and top_k; None: raw.

        Returns:
            n of them; None for a row whose logits have a NaN, +inf or nothing finite, for which the request fails.

        Raises:
            TypeError, ValueError: logits are not as said, tokens are not as many or beyond the vocabulary.
        """
        self._check(logits, len(next_ids))
        if not all(0 <= token < self.vocab_size for token in next_ids):
            raise ValueError(f"next_ids must be in [0, {self.vocab_size})")
        told: list[TokenLogprobs | None] = []
        for first in range(0, len(next_ids), PROMPT_ROWS):
            part = aligned(logits[first : first + PROMPT_ROWS])
            tokens = self._moved(torch.tensor(next_ids[first : first + PROMPT_ROWS], dtype=torch.int32))
            if processed is None:
                values = log_softmax(part)
            else:
                values = fused_sample(part, self._limits([SampleRow(processed, 0, 0)] * len(part)).logits)[0]
            read = Ranking.of(values, part, tokens, [top] * len(part)).read()
            told += [None if one.logprob != one.logprob else one for one in read]
        return told

    def _check(self, logits: torch.Tensor, count: int) -> None:
        if logits.dtype != torch.float32:
            raise TypeError(f"logits must be float32, not {str(logits.dtype).removeprefix('torch.')}")
        if tuple(logits.shape) != (count, self.vocab_size):
            raise ValueError(f"logits must have the shape {[count, self.vocab_size]}, not {list(logits.shape)}")

    def _limits(self, rows: Sequence[SampleRow]) -> SamplingKernelInputs:
        """The rows' parameters on the device."""
        temperatures, top_ps, top_ks = zip(*(one.params.limits for one in rows), strict=True)
        moved = to_device(
            {
                "temperatures": np.array(temperatures, np.float32),
                "top_ps": np.array(top_ps, np.float32),
                "top_ks": np.array(top_ks, np.int32),
                "seeds": np.array([one.seed % 2**64 for one in rows], np.uint64),
                "positions": np.array([one.position for one in rows], np.int32),
            },
            self.device,
        )
        transform = LogitsTransformInputs(moved["temperatures"], moved["top_ps"], moved["top_ks"])
        return SamplingKernelInputs(transform, moved["seeds"], moved["positions"])

    def _ranked(
        self,
        values: torch.Tensor | None,
        order: torch.Tensor,
        candidates: torch.Tensor,
        told: Sequence[int],
        tops: Sequence[int],
    ) -> Ranking:
        index = self._moved(torch.tensor(told))
        rows = aligned(order.index_select(0, index))
        chosen = log_softmax(rows) if values is None else values.index_select(0, index)
        return Ranking.of(chosen, rows, candidates.index_select(0, index), tops)

    def _moved(self, values: torch.Tensor) -> torch.Tensor:
        """Host values on the device, without a wait for it."""
        if self.device.type == "cpu":
            return values
        return values.pin_memory().to(self.device, non_blocking=True)


def _told(params: SamplingParams) -> bool:
    return params.logprobs is not None
