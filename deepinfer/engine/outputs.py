"""What comes back of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from deepinfer.errors import DeepInferError, InputError

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one position.

    token_id and logprob: of the token that stands there. rank: 1 for the likeliest.
    top: the likeliest tokens (id, log-probability), best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Completion:
    """One completion. text and token_ids: without the prompt. stop: the text or token id that ended it, if one did.

    finish_reason: None while it goes on; "error" with `error` set where this request failed and others did not.
    problem: what `error` is the text of, where it was raised for the user; its `told` writes options as he does.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    error: str = ""
    problem: DeepInferError | None = field(default=None, repr=False, compare=False)

    def blame(self, problem: Exception) -> None:
        """Say that it could not be begun, and why."""
        self.error = str(problem)
        if isinstance(problem, DeepInferError):
            self.problem = problem
        elif isinstance(problem, (TypeError, ValueError)):
            self.problem = InputError(self.error)
        else:
            self.error = f"it was stopped by {type(problem).__name__}: {problem}"


@dataclass
class RequestOutput:
    """A prompt's completions. cached_tokens: of the prompt, those whose cache was there already."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        """Whether every completion has ended."""
        return all(one.finish_reason is not None for one in self.outputs)
