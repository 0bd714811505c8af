"""What the engine refuses: each is told by name, before anything is held."""

from __future__ import annotations

import dataclasses

import pytest

from deepinfer.config import Vision
from deepinfer.engine.core import Engine
from deepinfer.engine.sequence import Request
from deepinfer.errors import DeepInferError, InputError
from deepinfer.sampling.params import SamplingParams, Structure
from tests.engine.tiny_engine import ask, engine, greedy, loaded, prompt, quiet_cpu

cpu = pytest.fixture(autouse=True, scope="module")(quiet_cpu)


def test_a_structure_that_cannot_be_taken_is_refused_and_holds_nothing() -> None:
    pytest.importorskip("xgrammar")
    running = engine()
    with pytest.raises(ValueError, match="structure"):
        running.add(Request(prompt(8), SamplingParams(structure=Structure("regex", "("))))
    assert not running.has_work


def test_without_a_tokenizer_token_ids_do_and_texts_are_refused() -> None:
    bare = dataclasses.replace(loaded(), tokenizer=None)
    told = ask(prompt(8), greedy(2), engine(bare)).outputs[0]
    assert told.text == "" and told.token_ids == ask(prompt(8), greedy(2)).outputs[0].token_ids
    for given, params in (
        ("text", greedy(1)),
        ([20], greedy(1, stop=("x",))),
        ([20], greedy(1, structure=Structure("regex", "a"))),
    ):
        with pytest.raises(InputError, match="without"):
            engine(bare).add(Request(given, params))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "empty"),
        ([], "empty"),
        ([5, 512], "token 1 is 512"),
        ([-1], "token 0 is -1"),
        ([0] * 500, "500 tokens, and prompt and output together may have 500"),
    ],
)
def test_a_prompt_that_cannot_be_taken_is_refused_by_name(given: str | list[int], told: str) -> None:
    running = engine(max_model_len=500)
    with pytest.raises(InputError, match="prompt") as caught:
        running.add(Request(given))
    assert told in str(caught.value)
    assert not running.has_work


@pytest.mark.parametrize(
    ("options", "cause", "more"),
    [
        ({}, "the model was made for 4096 tokens", ""),
        ({"max_model_len": 500}, "max_model_len is 500", ", or open the model with a larger max_model_len"),
        ({"blocks": 3}, "3 blocks of 128 tokens, one of them", ", or open the model with more cache blocks (blocks)"),
    ],
)
def test_a_prompt_that_is_too_long_is_told_what_would_let_it(options: dict[str, int], cause: str, more: str) -> None:
    running = engine(**{"blocks": 40, **options})
    with pytest.raises(InputError) as caught:
        running.add(Request([5] * 5000))
    assert cause in caught.value.cause and caught.value.next_step.startswith(f"shorten the prompt{more}")
    assert more or caught.value.next_step == "shorten the prompt", "what cannot be had is not offered"


def test_a_prompt_that_asks_for_an_image_is_refused() -> None:
    own = loaded()
    seeing = dataclasses.replace(own.config, vision=Vision(1024, 3, 14, 1024, 295936, None))
    running = engine(dataclasses.replace(own, config=seeing))
    with pytest.raises(InputError, match="asks for an image: token 1 is 500"):
        running.add(Request([20, own.config.image_token_id]))
    assert ask([20, own.config.image_token_id], greedy(1)).finished


@pytest.mark.parametrize("given", [None, 5, [1.5], [True], ["a"], b"text", bytearray(b"text")])
def test_what_is_no_prompt_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match="prompt"):
        engine().add(Request(given))  # type: ignore[arg-type]


def test_two_requests_of_one_name_are_refused_until_the_first_is_told() -> None:
    running = engine()
    running.add(Request(prompt(5), greedy(1), request_id="one"))
    with pytest.raises(InputError, match="request_id 'one'"):
        running.add(Request(prompt(5), greedy(1), request_id="one"))
    running.step()
    running.add(Request(prompt(5), greedy(1), request_id="one"))


@pytest.mark.parametrize(
    ("options", "told", "code"),
    [
        ({"max_model_len": 5000}, "max_model_len 5000 is more than the 4096", 1),
        ({"max_model_len": 4000, "blocks": 10}, "10 cache blocks, one of them kept for padding, hold 1152 tokens", 4),
    ],
)
def test_limits_that_cannot_be_kept_are_told(options: dict[str, int], told: str, code: int) -> None:
    with pytest.raises(DeepInferError, match=told) as refused:
        engine(**options)
    assert refused.value.exit_code == code


@pytest.mark.parametrize(
    "options", [{"max_num_seqs": 0}, {"chunk_tokens": 0}, {"blocks": 1}, {"memory_fraction": 0.0}, {"blocks": 2.5}]
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        engine(**options)


def test_prompt_logprobs_are_refused_with_compact_truncation() -> None:
    compact: Engine = engine(loaded(truncation="compact"))
    with pytest.raises(InputError, match="prompt_logprobs") as caught:
        compact.add(Request(prompt(20), greedy(1, prompt_logprobs=0)))
    assert 'open the model with truncation "off"' in caught.value.next_step
    assert "open the model with <truncation>" in caught.value.told(lambda option: f"<{option}>")
