"""What a request may ask of sampling. Every value is checked when the object is made, and named when it is wrong."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deepinfer.errors import kind_of, shown

GREEDY_TEMPERATURE = 1e-5
"""Below it sampling is greedy: the temperature is taken for this one, and top_p is off (kernel_spec B.1)."""
HIGHEST_TEMPERATURE = 1e30
"""Larger ones count as it: their inverse would leave the f32 numbers, and every kept token is equally likely anyway."""
MAX_LOGPROBS = 1000
MAX_COMPLETIONS = 128
_INT64 = 2**63


@dataclass(frozen=True)
class Structure:
    """What the text has to match. kind: "json" (a JSON schema), "regex", "ebnf" or "choice" (one of several texts)."""

    kind: Literal["json", "regex", "ebnf", "choice"]
    grammar: str | tuple[str, ...] | dict[str, Any]

    def __post_init__(self) -> None:
        if self.kind not in ("json", "regex", "ebnf", "choice"):
            raise ValueError(f"structure.kind must be json, regex, ebnf or choice, not {shown(self.kind)}")
        expected: tuple[type, ...] = {"json": (str, dict), "choice": (tuple, list)}.get(self.kind, (str,))
        if not isinstance(self.grammar, expected):
            names = " or ".join(one.__name__ for one in expected)
            raise TypeError(f"structure.grammar of kind {self.kind} must be {names}, not {kind_of(self.grammar)}")
        if self.kind == "choice":
            if not self.grammar or not all(isinstance(one, str) and one for one in self.grammar):
                raise ValueError("structure.grammar of kind choice must be texts, at least one and none empty")
            object.__setattr__(self, "grammar", tuple(self.grammar))


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request.

    Args:
        temperature: 0 is greedy; logits are divided by it.
        top_p: 0 to 1, the mass of the likeliest tokens that are kept. 1 keeps all.
        top_k: how many of the likeliest tokens are kept; 0 or -1 keeps all.
        seed: -2^63 to 2^63 - 1. The same prompt, parameters and seed give the same tokens. None: drawn at random.
        n: completions of the prompt; the i-th has the seed + i.
        max_tokens: at least 1. min_tokens: no stop before as many, but where the text of a structure is complete.
        stop: texts before which the output ends. stop_token_ids: tokens that end it. ignore_eos: go on past the end.
        logprobs: None, or of how many likeliest tokens beside the chosen one to tell the log-probability (0: it alone).
        prompt_logprobs: the same for the tokens of the prompt.
        logprobs_mode: "raw" (log-softmax of the logits as the model gave them), or "processed" (after temperature,
            top_p and top_k).
        structure: what the text has to match.

    Raises:
        TypeError, ValueError: a field's type or value is not allowed; the message names the field.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    n: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    structure: Structure | None = None
    seed_in_effect: int = field(init=False, repr=False, compare=False)
    """`seed`, or the one that was drawn."""

    def __post_init__(self) -> None:
        self._numbers()
        self._counts()
        object.__setattr__(self, "stop", _texts(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        _flag("ignore_eos", self.ignore_eos)
        if self.logprobs_mode not in ("raw", "processed"):
            raise ValueError(f"logprobs_mode must be 'raw' or 'processed', not {shown(self.logprobs_mode)}")
        if self.structure is not None and not isinstance(self.structure, Structure):
            raise TypeError(f"structure must be a Structure, not {kind_of(self.structure)}")
        drawn = secrets.randbits(63) if self.seed is None else self.seed
        object.__setattr__(self, "seed_in_effect", drawn)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def limits(self) -> tuple[float, float, int]:
        """temperature, top_p and top_k as the kernels take them.

        Greedy keeps one token, where kernel_spec B.1 turns top_k off and relies on the lowest temperature: that alone
        leaves a draw by the seed among tokens whose logits are as good as equal.
        """
        if self.greedy:
            return GREEDY_TEMPERATURE, 1.0, 1
        return min(float(self.temperature), HIGHEST_TEMPERATURE), float(self.top_p), self.top_k

    def _numbers(self) -> None:
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, not {kind_of(value)}")
            if not _is_finite(value):
                raise ValueError(f"{name} must be finite, not {shown(value)}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p must be between 0 and 1, not {shown(self.top_p)}")
        if self.seed is not None:
            _whole("seed", self.seed, -_INT64, _INT64 - 1)

    def _counts(self) -> None:
        _whole("top_k", self.top_k, -1, 2**31 - 1)
        _whole("n", self.n, 1, MAX_COMPLETIONS)
        _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MAX_LOGPROBS)


def _whole(name: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {kind_of(value)}")
    if not lowest <= value <= highest:
        raise ValueError(f"{name} must be between {lowest} and {highest}, not {shown(value)}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the floating ones
        return False


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, not {kind_of(value)}")


def _texts(value: object) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise TypeError(f"stop must be a text or a list of texts, not {kind_of(value)}")
    if "" in found:
        raise ValueError("stop must not hold an empty text: it would end every output at once")
    for one in found:
        check_encodable(one, "stop")
    return tuple(found)


def _ids(value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):  # bytes are numbers, but a text
        raise TypeError(f"stop_token_ids must be a list of token ids, not {kind_of(value)}")
    for one in value:
        _whole("a token id of stop_token_ids", one, 0, 2**31 - 1)
    return tuple(value)


def check_encodable(text: str, name: str) -> None:
    """ValueError: the text called `name` has no bytes, since half of a character stands alone in it."""
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        code = ord(text[problem.start])
        raise ValueError(
            f"{name} is no text: its character {problem.start + 1} is the lone surrogate U+{code:04X}, "
            "as bytes of another encoding become where they are read wrongly"
        ) from problem
