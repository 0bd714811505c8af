"""What the engine works on: a request, and the sequences of tokens that answer it."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepinfer.engine.outputs import Completion, TokenLogprobs
from deepinfer.errors import kind_of
from deepinfer.sampling.params import SamplingParams, check_encodable

if TYPE_CHECKING:
    from deepinfer.engine.detokenize import Detokenizer
    from deepinfer.structured_output import Matcher

_numbers = itertools.count()


@dataclass(frozen=True)
class Request:
    """A prompt (text or token ids) and what is asked of sampling.

    request_id: names the request in outputs and to `Engine.cancel`; one is made up where it is ''.
    salt: requests share cached prefixes only with those of the same salt.

    Raises:
        TypeError, ValueError: params, request_id or salt is not as said. The prompt is judged with a model.
    """

    prompt: str | Tokens[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.params, SamplingParams):
            raise TypeError(f"a request's params must be SamplingParams, not {kind_of(self.params)}")
        for name in ("request_id", "salt"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"a request's {name} must be a text, not {kind_of(value)}")
            check_encodable(value, f"a request's {name}")
        if not self.request_id:
            object.__setattr__(self, "request_id", f"request-{next(_numbers)}")


class Status(enum.Enum):
    """Where a sequence is: its grammar is not compiled yet, not in a batch, in batches, or done."""

    COMPILING = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass(eq=False)
class Sequence:
    """One completion on its way.

    tokens: the prompt's `prompt_length` and those generated. completion: what the user gets of it. arrival: the order
    in which sequences came; the later one gives way. root: the hash that its blocks' begin with. stops: tokens that
    end it. leader: the sequence of the same prompt whose prompt is computed first, so that this one finds it cached.
    text, matcher: follow its text, and what its grammar allows.

    Of the scheduler: slot and blocks that it holds, the blocks in one list that is only added to while it does; cached,
    tokens whose keys are in them; prefilled, tokens that were known when it was admitted; hashes of its whole blocks,
    and how many of them are registered with the prefix cache; reused, tokens that were found there at first (None
    before); parting, tokens that an earlier prompt began with too.
    """

    request: Request
    tokens: list[int]
    prompt_length: int
    arrival: int
    completion: Completion
    root: bytes
    stops: frozenset[int] = frozenset()
    leader: Sequence | None = None
    text: Detokenizer | None = None
    matcher: Matcher | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    status: Status = Status.WAITING
    slot: int = 0
    blocks: list[int] = field(default_factory=list)
    cached: int = 0
    prefilled: int = 0
    hashes: list[bytes] = field(default_factory=list)
    registered: int = 0
    reused: int | None = None
    parting: int = 0
    preemptions: int = 0

    @property
    def params(self) -> SamplingParams:
        """What is asked of sampling."""
        return self.request.params

    @property
    def generated(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - self.prompt_length

    @property
    def in_prompt(self) -> bool:
        """Whether tokens of it have to be prefilled yet: its prompt, or after a preemption what was known then."""
        return self.status is not Status.RUNNING or self.cached < self.prefilled

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of its prompt are still missing."""
        return self.prompt_logprobs is not None and not self.generated

    @property
    def seed(self) -> int:
        """The seed of its random numbers: that of the request and its index, within 64 bits."""
        return (self.params.seed_in_effect + self.completion.index + 2**63) % 2**64 - 2**63
