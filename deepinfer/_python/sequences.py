"""Sequences as the sampler sees them; part of `engine`."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Final, SupportsFloat, SupportsIndex

from deepinfer._python.integers import MAX_INT32, as_bounded

LOWEST_TEMPERATURE: Final = 1e-5
HIGHEST_TEMPERATURE: Final = 1e30


def _as_number(value: SupportsFloat | SupportsIndex, name: str) -> float:
    if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError as problem:
        raise ValueError(f"{name} is too large") from problem
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, not NaN")
    return number


def _as_token(value: SupportsIndex) -> int:
    return as_bounded(value, "a token id", -MAX_INT32 - 1)


class SequenceData:
    """A sequence's tokens: the prompt, whose length is fixed, and what was appended. Ids fit 32 bits."""

    def __init__(self, prompt_token_ids: Iterable[SupportsIndex]) -> None:
        self._tokens = [_as_token(token) for token in prompt_token_ids]
        if not self._tokens:
            raise ValueError("prompt_token_ids must not be empty")
        self._prompt_len = len(self._tokens)

    def append(self, token_id: SupportsIndex) -> None:
        """Add an output token."""
        self._tokens.append(_as_token(token_id))

    def get_token_ids(self) -> list[int]:
        """A copy of all tokens."""
        return list(self._tokens)

    def get_len(self) -> int:
        """How many tokens there are."""
        return len(self._tokens)

    def get_prompt_len(self) -> int:
        """How many of them are the prompt's."""
        return self._prompt_len

    def get_last_token_id(self) -> int:
        """The newest one."""
        return self._tokens[-1]


class SamplingValues:
    """What a request asks of the kernels.

    Args:
        temperature: at least 0. Below 1e-5 it is greedy: temperature 1e-5 and no filter (kernel_spec B.1).
        top_p: 0 to 1. top_k: -1 (or 0) for all.
        seq_seed: any integer; its lowest 64 bits count.
        top_logprobs: of how many likeliest tokens to tell.
        prompt_logprobs: whether log-probabilities of the prompt are wanted.
        first_n_token_no_eos: 1 if the first token must not be eos_id.
        eos_id: the token that ends a text, or -1. ignore_eos: it does not end this one.
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: SupportsIndex = -1,
        seq_seed: SupportsIndex = 0,
        top_logprobs: SupportsIndex = 0,
        prompt_logprobs: bool = False,
        first_n_token_no_eos: SupportsIndex = 0,
        eos_id: SupportsIndex = -1,
        ignore_eos: bool = False,
    ) -> None:
        self.temperature = _as_number(temperature, "temperature")
        self.top_p = _as_number(top_p, "top_p")
        self.top_k = as_bounded(top_k, "top_k", -1)
        if self.temperature < 0:
            raise ValueError("temperature must be at least 0")
        if not 0 <= self.top_p <= 1:
            raise ValueError("top_p must be between 0 and 1")
        if self.temperature < LOWEST_TEMPERATURE:
            self.temperature, self.top_p, self.top_k = LOWEST_TEMPERATURE, 1.0, -1
        self.temperature = min(self.temperature, HIGHEST_TEMPERATURE)
        try:
            self.seq_seed = operator.index(seq_seed) & (2**64 - 1)
        except TypeError as problem:
            raise TypeError(f"seq_seed must be an integer, not {type(seq_seed).__name__}") from problem
        self.top_logprobs = as_bounded(top_logprobs, "top_logprobs", 0)
        self.prompt_logprobs = bool(prompt_logprobs)
        self.first_n_token_no_eos = as_bounded(first_n_token_no_eos, "first_n_token_no_eos", 0)
        self.eos_id = as_bounded(eos_id, "eos_id", -1)
        self.ignore_eos = bool(ignore_eos)


class SequenceMetadata:
    """A sequence as one step sees it. `seq_data` is the sequence's own: what is appended to it is seen here.

    Args:
        is_prompt: whether the step is one of prefill.
        seqlen_q: rows of the step. seqlen_k: tokens up to its last row.
        mtp_info_read_slot, mtp_info_write_slot: where its drafts are, and where the next ones go; 0 is padding.
        golden_token_ids: tokens that its outputs are to be, from the first one on; None for none.
    """

    def __init__(
        self,
        seq_data: SequenceData,
        sampling_params: SamplingValues,
        *,
        is_prompt: bool,
        seqlen_q: SupportsIndex,
        seqlen_k: SupportsIndex,
        mtp_info_read_slot: SupportsIndex = 0,
        mtp_info_write_slot: SupportsIndex = 0,
        golden_token_ids: Iterable[SupportsIndex] | None = None,
    ) -> None:
        self.seq_data = seq_data
        self.sampling_params = sampling_params
        self._golden = [] if golden_token_ids is None else [_as_token(token) for token in golden_token_ids]
        self.advance(
            is_prompt=is_prompt,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            mtp_info_read_slot=mtp_info_read_slot,
            mtp_info_write_slot=mtp_info_write_slot,
        )

    def advance(
        self,
        *,
        is_prompt: bool,
        seqlen_q: SupportsIndex,
        seqlen_k: SupportsIndex,
        mtp_info_read_slot: SupportsIndex = 0,
        mtp_info_write_slot: SupportsIndex = 0,
    ) -> None:
        """Be the same sequence in another step."""
        rows, tokens = as_bounded(seqlen_q, "seqlen_q", 1), as_bounded(seqlen_k, "seqlen_k", 1)
        if rows > tokens:
            raise ValueError(f"seqlen_k must be at least seqlen_q ({rows}), not {tokens}")
        read_slot = as_bounded(mtp_info_read_slot, "mtp_info_read_slot", 0)
        self.mtp_info_write_slot = as_bounded(mtp_info_write_slot, "mtp_info_write_slot", 0)
        self.mtp_info_read_slot = read_slot
        self.is_prompt = bool(is_prompt)
        self.seqlen_q, self.seqlen_k = rows, tokens

    def golden_left(self) -> list[int]:
        """Golden tokens from the next output on."""
        return self._golden[self.seq_data.get_len() - self.seq_data.get_prompt_len() :]
