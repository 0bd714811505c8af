"""SamplingParams: what is allowed, and the name of what is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from deepinfer.sampling import SamplingParams, Structure


def test_defaults_sample_and_a_seed_is_drawn() -> None:
    first, second = SamplingParams(), SamplingParams()
    assert not first.greedy and first.seed is None and first == second
    assert 0 <= first.seed_in_effect < 2**63 and first.seed_in_effect != second.seed_in_effect
    assert SamplingParams(seed=-(2**63)).seed_in_effect == -(2**63)


def test_what_is_allowed_at_the_edges() -> None:
    assert SamplingParams(temperature=0).greedy and SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=1e-5).greedy
    for change in (
        {"top_p": 0}, {"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"seed": 2**63 - 1}, {"max_tokens": 1},
        {"min_tokens": 16}, {"logprobs": 0}, {"logprobs": 1000}, {"n": 128}, {"stop": "x"}, {"stop": ["a", "b"]},
        {"stop_token_ids": [0, 5]}, {"logprobs_mode": "processed"},
    ):  # fmt: skip
        SamplingParams(**change)
    assert SamplingParams(stop="ab").stop == ("ab",) and SamplingParams(stop_token_ids=[3]).stop_token_ids == (3,)


HUGE: tuple[tuple[str, object, type[Exception]], ...] = (
    ("seed", 10**5000, ValueError), ("temperature", 10**5000, ValueError), ("stop_token_ids", [10**5000], ValueError),
    ("stop", [10**5000], TypeError),
)  # fmt: skip
"""Numbers of more digits than Python writes out."""


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("temperature", -0.1, ValueError), ("temperature", math.nan, ValueError), ("temperature", math.inf, ValueError),
        ("temperature", "1", TypeError), ("temperature", True, TypeError), ("top_p", 1.1, ValueError),
        ("top_p", -0.1, ValueError), ("top_p", math.nan, ValueError), ("top_k", -2, ValueError),
        ("top_k", 1.5, TypeError), ("top_k", 2**31, ValueError),
        ("seed", 2**63, ValueError), ("seed", -(2**63) - 1, ValueError),
        ("seed", "100", TypeError), ("seed", True, TypeError), ("max_tokens", 0, ValueError),
        ("min_tokens", 17, ValueError), ("min_tokens", -1, ValueError), ("n", 0, ValueError), ("n", 129, ValueError),
        ("stop", "", ValueError), ("stop", ["a", ""], ValueError), ("stop", 3, TypeError), ("stop", [3], TypeError),
        ("stop_token_ids", [-1], ValueError), ("stop_token_ids", "12", TypeError), ("stop_token_ids", [1.0], TypeError),
        ("stop_token_ids", b"12", TypeError), ("stop_token_ids", bytearray(b"12"), TypeError),
        ("ignore_eos", 1, TypeError), ("logprobs", -1, ValueError), ("logprobs", 1001, ValueError),
        ("logprobs", True, TypeError), ("prompt_logprobs", "1", TypeError), ("logprobs_mode", "cooked", ValueError),
        ("structure", {"kind": "json"}, TypeError),
        ("temperature", 10**400, ValueError), ("top_p", -(10**400), ValueError),
        *(pytest.param(field, value, error, id=f"{field}-huge") for field, value, error in HUGE),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=field) as told:
        SamplingParams(**{field: value})
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("kind", "grammar", "error"),
    [
        ("xml", "", ValueError), ("regex", 3, TypeError), ("choice", "abc", TypeError), ("choice", [], ValueError),
        ("choice", ["a", ""], ValueError), ("json", ["a"], TypeError), ([], "a", ValueError), ({}, {}, ValueError),
    ],
)  # fmt: skip
def test_a_structure_that_is_none(kind: Any, grammar: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="structure"):
        Structure(kind, grammar)


def test_a_structure_is_kept_as_it_is_meant() -> None:
    assert Structure("choice", ["a", "b"]).grammar == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(structure=Structure("regex", "a+")).structure is not None
