"""A step's sampling inputs on the device: the containers, and that the kernels take them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer import native
from deepinfer.ops.fused_sample import fused_sample
from deepinfer.ops.sampler import expand_sampling_params, prepare_verification_metadata
from deepinfer.sampling.inputs import prepare_sampler_inputs, values_of
from deepinfer.sampling.params import SamplingParams
from deepinfer.sampling.sampler import Sampler, SampleRow


def test_a_request_parameters() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, seed=-3, logprobs=2, prompt_logprobs=0, min_tokens=1)
    values = values_of(params, completion=2, eos_id=1)
    assert (values.temperature, values.top_p, values.top_k, values.seq_seed) == (0.7, 0.9, 5, 2**64 - 1)


@pytest.mark.parametrize("temperature", [0.0, 9e-6, 1e-5, 0.7, 1e38])
def test_a_row_is_limited_the_same_by_either_way(temperature: float) -> None:
    """What the compiled part's containers hold is what the sampler takes: greedy keeps the likeliest token alone."""
    params = SamplingParams(temperature=temperature, top_p=0.5, top_k=4, seed=2**63 - 1)
    values = values_of(params, completion=3)
    sampler = Sampler(64, "cpu")._limits([SampleRow(params, params.seed_in_effect + 3, 1)])
    own = [torch.tensor([one]) for one in (values.temperature, values.top_p)]
    assert own[0].equal(sampler.logits.temperatures) and own[1].equal(sampler.logits.top_ps)
    assert [values.top_k] == sampler.logits.top_ks.tolist() == [1 if temperature < 1e-5 else 4]
    assert [values.seq_seed] == sampler.seq_seeds.tolist()


def test_greedy_rows_take_the_first_of_equal_tokens_whatever_the_seed() -> None:
    """By the containers too: at the lowest temperature alone a draw would choose among them."""

    def one(seed: int) -> Any:
        values = values_of(SamplingParams(temperature=0.0, seed=seed))
        return native.engine.SequenceMetadata(
            native.engine.SequenceData([5]), values, is_prompt=True, seqlen_q=1, seqlen_k=1
        )

    logits = torch.zeros(16, 64)
    logits[:, 40:60] = 30.0
    inputs = prepare_sampler_inputs([one(seed) for seed in range(16)], 0, device="cpu")
    tokens = fused_sample(logits, inputs.driver.kernel)[1]
    assert tokens is not None and set(tokens.tolist()) == {40}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_on_the_device_they_are_what_the_kernels_take(device: str) -> None:
    """A decode step with drafts, through the kernels: each sequence's rows have its parameters, and a token."""

    def one(place: int, rows: int) -> Any:
        data = native.engine.SequenceData(range(5))
        data.append(7)
        params = values_of(SamplingParams(temperature=0.5 + place, seed=place, logprobs=place), eos_id=1)
        step = {"seqlen_q": rows, "seqlen_k": 5 + rows, "mtp_info_read_slot": place, "mtp_info_write_slot": place}
        return native.engine.SequenceMetadata(data, params, is_prompt=False, golden_token_ids=[1, 2, 3], **step)

    inputs = prepare_sampler_inputs([one(1, 3), one(2, 1)], 2, device=device)
    assert (
        inputs.decode is not None and inputs.driver.speculative is not None and inputs.driver.golden_output is not None
    )
    assert inputs.selected_token_indices.tolist() == [0, 1, 2, 3] and inputs.selected_prompt_indices is None
    assert inputs.driver.max_top_logprobs == 2 and inputs.driver.prefill is None
    assert inputs.driver.golden_output.tolist() == [2, 3, -1, 2]
    assert inputs.driver.speculative.nextn_tokens == 2
    assert inputs.driver.speculative.stop_token_ids.tolist() == [[1, -1], [1, -1]]
    decode = inputs.decode
    rows = prepare_verification_metadata(decode.mtp_first_token_positions, decode.mtp_seqlens_q, 4, 3)
    expanded = expand_sampling_params(inputs.driver.kernel, rows[0], rows[1])
    assert expanded.logits.temperatures.tolist() == [1.5, 1.5, 1.5, 2.5]
    assert expanded.sample_positions.tolist() == [6, 6 + 10000019, 6 + 2 * 10000019, 6]
    tokens = fused_sample(torch.zeros(4, 64, device=device), expanded)[1]
    assert tokens is not None and all(0 <= token < 64 for token in tokens.tolist())


def test_prefill_on_the_device() -> None:
    def one(temperature: float, told: int | None, chunk: int) -> Any:
        params = values_of(SamplingParams(temperature=temperature, prompt_logprobs=told, min_tokens=1), eos_id=3)
        data = native.engine.SequenceData(range(10, 16))
        return native.engine.SequenceMetadata(data, params, is_prompt=True, seqlen_q=chunk, seqlen_k=chunk)

    inputs = prepare_sampler_inputs([one(0.5, 0, 2), one(1.0, None, 3), one(2.0, 3, 6)], 0, device="cpu")
    prefill = inputs.driver.prefill
    assert prefill is not None and inputs.decode is None and inputs.driver.speculative is None
    assert (prefill.eos_suppression_rows.tolist(), prefill.eos_token_ids.tolist()) == ([2], [3])
    told = prefill.prompt_logprobs
    assert told is not None and inputs.selected_prompt_indices is not None
    assert (told.prompt_logprobs_lens, told.enabled) == ([2, 0, 5], [True, False, True])
    assert told.prompt_tokens.tolist() == [11, 12, 11, 12, 13, 14, 15]
    assert inputs.selected_prompt_indices.tolist() == [0, 1, 5, 6, 7, 8, 9]
    assert told.logits.temperatures.tolist() == [0.5] * 2 + [2.0] * 5
    assert inputs.selected_token_indices.tolist() == [1, 4, 10]

    silent = prepare_sampler_inputs([one(0.5, None, 2)], 0, device="cpu")
    assert silent.selected_prompt_indices is None
    assert silent.driver.prefill is not None and silent.driver.prefill.prompt_logprobs is None
