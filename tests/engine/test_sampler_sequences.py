"""Sequences and their parameters as prepare_sampler_inputs takes them, in the compiled part and its twin."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def test_a_sequence_is_seen_as_it_is_now(implementation: ModuleType) -> None:
    """What is appended shows, and one object serves step after step."""
    engine = implementation.engine
    data = engine.SequenceData([5, 6])
    one = engine.SequenceMetadata(data, engine.SamplingValues(), is_prompt=True, seqlen_q=2, seqlen_k=2)
    assert engine.prepare_sampler_inputs([one], 1)["sample_positions"].tolist() == [2]
    data.append(7)
    one.advance(is_prompt=False, seqlen_q=1, seqlen_k=3, mtp_info_write_slot=9)
    values = engine.prepare_sampler_inputs([one], 1)
    assert values["sample_positions"].tolist() == [3] and values["mtp_info_write_slots"].tolist() == [9]
    assert (one.is_prompt, one.seqlen_q, one.seqlen_k) == (False, 1, 3)
    assert (data.get_token_ids(), data.get_len(), data.get_prompt_len(), data.get_last_token_id()) == (
        [5, 6, 7],
        3,
        2,
        7,
    )
    data.get_token_ids().append(8)
    assert data.get_len() == 3, "a copy"


def test_values_are_brought_into_the_kernels_terms(implementation: ModuleType) -> None:
    values = implementation.engine.SamplingValues
    greedy = values(temperature=9e-6, top_p=0.1, top_k=4)
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (1e-5, 1.0, -1)
    assert values(temperature=float("inf")).temperature == values(temperature=1e31).temperature == 1e30
    assert values(temperature=1e-5, top_k=4).top_k == 4
    assert values(seq_seed=-(2**63)).seq_seed == 2**63 and values(seq_seed=2**70 + 5).seq_seed == 5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"temperature": -0.1}, ValueError, "temperature must be at least 0"),
        ({"temperature": float("nan")}, ValueError, "temperature must be a number, not NaN"),
        ({"temperature": "1"}, TypeError, "temperature must be a number, not str"),
        ({"temperature": 10**400}, ValueError, "temperature is too large"),
        ({"top_p": 1.5}, ValueError, "top_p must be between 0 and 1"),
        ({"top_k": -2}, ValueError, "top_k must be -1 to 2147483647, not -2"),
        ({"top_k": 2**31}, ValueError, "top_k must be -1 to 2147483647"),
        ({"top_k": 1.0}, TypeError, "top_k must be an integer, not float"),
        ({"seq_seed": "5"}, TypeError, "seq_seed must be an integer, not str"),
        ({"top_logprobs": -1}, ValueError, "top_logprobs must be 0 to"),
        ({"eos_id": -2}, ValueError, "eos_id must be -1 to"),
    ],
)
def test_wrong_values(implementation: ModuleType, change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        implementation.engine.SamplingValues(**change)
    assert message in str(caught.value)


def test_wrong_sequences(implementation: ModuleType) -> None:
    engine = implementation.engine
    with pytest.raises(ValueError, match="prompt_token_ids must not be empty"):
        engine.SequenceData([])
    with pytest.raises(ValueError, match="a token id must be -2147483648 to 2147483647, not 2147483648"):
        engine.SequenceData([2**31])
    data, params = engine.SequenceData([1, 2, 3]), engine.SamplingValues()
    with pytest.raises(TypeError, match="a token id must be an integer, not float"):
        data.append(1.5)
    for step, message in (
        ({"seqlen_q": 0, "seqlen_k": 3}, "seqlen_q must be 1 to"),
        ({"seqlen_q": 3, "seqlen_k": 2}, r"seqlen_k must be at least seqlen_q \(3\), not 2"),
        ({"seqlen_q": 1, "seqlen_k": 1, "mtp_info_read_slot": -1}, "mtp_info_read_slot must be 0 to"),
        ({"seqlen_q": 1, "seqlen_k": 1, "mtp_info_write_slot": -1}, "mtp_info_write_slot must be 0 to"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.SequenceMetadata(data, params, is_prompt=True, **step)
        one = engine.SequenceMetadata(data, params, is_prompt=True, seqlen_q=2, seqlen_k=3)
        with pytest.raises(ValueError, match=message):
            one.advance(is_prompt=False, **step)
        assert (one.is_prompt, one.seqlen_q, one.seqlen_k) == (True, 2, 3), "it stayed as it was"
