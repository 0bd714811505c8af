"""What a program gives to be answered, as requests: prompts and parameters paired, and what is none refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from deepinfer.engine.sequence import Request
from deepinfer.errors import DeepInferError, kind_of
from deepinfer.sampling import SamplingParams

Prompt = str | Sequence[int]
"""A text (the token that begins a sentence is put first) or token ids (taken as they are)."""


def checked(requests: Iterable[Request]) -> Iterator[Request]:
    """The same requests, of which what is none is a TypeError when its turn comes."""
    if not isinstance(requests, Iterable):
        raise TypeError(f"requests must be a list of Request, or another iterable of them, not {kind_of(requests)}")
    for index, request in enumerate(requests):
        if not isinstance(request, Request):
            raise TypeError(
                f"requests[{index}] must be a Request, not {kind_of(request)}: "
                "`generate` takes prompts, and Request(prompt, params) makes one of a prompt"
            )
        yield request


def paired(
    prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[Request]:
    """Prompts and parameters, paired. TypeError, ValueError: they are no prompts, or not as many."""
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise TypeError(f"prompts must be a text, a list of token ids, or a list of them, not {kind_of(prompts)}")
    listed = cast("Sequence[Prompt]", [prompts] if is_single(prompts) else prompts)
    for index, prompt in enumerate(listed):
        if not isinstance(prompt, str) and not is_ids(prompt):
            images = ": images are not supported yet" if isinstance(prompt, Mapping) else ""
            raise TypeError(f"prompts[{index}] must be a text or a list of token ids, not {kind_of(prompt)}{images}")
    if params is None or isinstance(params, SamplingParams):
        params = [params or SamplingParams()] * len(listed)
    if not isinstance(params, Sequence) or isinstance(params, str | bytes | bytearray):
        raise TypeError(f"params must be SamplingParams, or a list of them, one for each prompt, not {kind_of(params)}")
    if len(params) != len(listed):
        raise ValueError(f"params must be one for all, or one for each of the {len(listed)} prompts: {len(params)}")
    for index, one in enumerate(params):
        if not isinstance(one, SamplingParams):
            raise TypeError(f"params[{index}] must be SamplingParams, not {kind_of(one)}")
    # Without a seed every prompt has a random one of its own, or the same prompts would get the same texts.
    each = [one if one.seed is not None else dataclasses.replace(one) for one in params]
    return [Request(prompt, one) for prompt, one in zip(listed, each, strict=True)]


def is_single(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Whether it is one prompt, a text or token ids, and no list of them."""
    return isinstance(prompts, str) or (len(prompts) > 0 and all(map(is_id, prompts)))


def named(problem: Exception, name: str) -> Exception:
    """The same error, which says of what."""
    if isinstance(problem, DeepInferError):
        return problem.of(name)
    return (TypeError if isinstance(problem, TypeError) else ValueError)(f"{name}: {problem}")


def is_ids(value: object) -> bool:
    """Whether it is a list of token ids."""
    listed = isinstance(value, Sequence) and not isinstance(value, bytes | bytearray)  # bytes are numbers, but a text
    return listed and all(map(is_id, cast("Sequence[object]", value)))


def is_id(value: object) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
