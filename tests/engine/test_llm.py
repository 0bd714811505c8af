"""LLM: prompts in, outputs out, in order; what it refuses, and what is left when a stream is left."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer import LLM, DeepInferError, SamplingParams
from deepinfer.engine.prompts import paired
from deepinfer.engine.sequence import Request
from deepinfer.engine.timing import Stopwatch
from deepinfer.loading.tiny import VOCABULARY

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def test_outputs_come_in_the_order_of_prompts_and_each_is_that_of_its_prompt_alone(tiny_llm: LLM) -> None:
    prompts: list[str | list[int]] = ["The quick brown fox", [0, 7, 9], "Ein schöner Tag"]
    params = [GREEDY, SamplingParams(seed=5, max_tokens=4, ignore_eos=True), SamplingParams(seed=6, n=2, max_tokens=3)]
    together = tiny_llm.generate(prompts, params)
    assert [one.prompt for one in together] == [prompts[0], None, prompts[2]]
    assert together[1].prompt_token_ids == prompts[1]
    assert [len(one.outputs) for one in together] == [1, 1, 2]
    assert len(together[0].outputs[0].token_ids) == 6 and len(together[1].outputs[0].token_ids) == 4
    assert all(one.finished for one in together)
    for prompt, its, output in zip(prompts, params, together, strict=True):
        (alone,) = tiny_llm.generate(prompt, its)
        assert alone.outputs == output.outputs
    assert "token_ids=[" in repr(together[0])


def test_one_prompt_or_none(tiny_llm: LLM) -> None:
    assert tiny_llm.generate([]) == []
    (text,) = tiny_llm.generate("fox", GREEDY)
    (ids,) = tiny_llm.generate(text.prompt_token_ids, GREEDY)
    assert ids.outputs[0].token_ids == text.outputs[0].token_ids


def test_without_a_seed_each_prompt_has_its_own_and_with_one_they_share_it() -> None:
    seeds = [one.params.seed_in_effect for one in paired(["x", "x", [1]], SamplingParams())]
    assert len(set(seeds)) == 3
    assert [one.params.seed_in_effect for one in paired(["x", "y"], SamplingParams(seed=3))] == [3, 3]


@pytest.mark.parametrize(
    ("prompts", "params", "said"),
    [
        (7, None, "prompts must be a text"),
        (b"fox", None, "prompts must be a text, .* not bytes"),
        ([b"fox"], None, r"prompts\[0\] must be a text or a list of token ids, not bytes"),
        ([7.5], None, r"prompts\[0\] must be a text or a list of token ids, not float"),
        (["x", {"prompt": "x", "image": "y"}], None, r"prompts\[1\] must be .* images are not supported yet"),
        ([[True]], None, r"prompts\[0\] must be"),
        (["x", "y"], [SamplingParams()], "each of the 2 prompts: 1"),
        (["x"], ["y"], r"params\[0\] must be SamplingParams"),
        ("x", 5, "params must be SamplingParams, or a list of them, .* not int 5"),
        ("x", {"temperature": 0}, "params must be SamplingParams, or a list of them, .* not dict"),
        ("x", iter([SamplingParams()]), "params must be SamplingParams, or a list of them"),
        ("a\ud800", None, r"the prompt is no text: its character 2 is the lone surrogate U\+D800"),
        ("x", SamplingParams(stop_token_ids=[VOCABULARY]), f"stop_token_ids holds {VOCABULARY}"),
        ("", None, "empty"),
        (["x", []], None, r"^prompts\[1\]: the prompt is empty"),
        (["a", "b", ""], None, r"^prompts\[2\]: the prompt is empty"),
        (["a", [0, VOCABULARY], "b"], None, r"^prompts\[1\]: the prompt's token 1 is"),
        (["a", [5] * 5000], None, r"^prompts\[1\]: the prompt has 5000 tokens"),
        (["a", "b\ud800"], None, r"^prompts\[1\]: the prompt is no text"),
        ([5] * 5000, None, "^the prompt has 5000 tokens"),
        ([[0, VOCABULARY]], None, str(VOCABULARY)),
        ([[-1]], None, "-1"),
        ([[5] * 5000], None, "5000"),
    ],
)
def test_what_cannot_be_taken_is_named_and_nothing_is_left(tiny_llm: LLM, prompts: Any, params: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        tiny_llm.generate(prompts, params)
    tiny_llm.engine.step()
    assert not tiny_llm.engine.has_work


def test_a_fault_of_a_step_is_not_called_one_of_a_prompt(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Any]:
        raise ValueError("the step broke")

    monkeypatch.setattr(tiny_llm.engine, "step", broken)
    with pytest.raises(ValueError, match=r"^the step broke$"):
        tiny_llm.generate(["a", "b"])


def test_every_argument_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "engine.md").read_text(encoding="utf-8")
    table = page.partition("\n| argument of `LLM` | |\n")[2].partition("\n\n")[0]
    arguments = list(inspect.signature(LLM).parameters)
    assert re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[1:])) == arguments
    described = (inspect.getdoc(LLM) or "").partition("Args:")[2].partition("Raises:")[0]
    assert [name for name in arguments if not re.search(rf"\b{name}\b[^:\n]*:", described)] == []


def test_the_time_of_a_request_begins_before_it_is_checked(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    now, add = [0.0], tiny_llm.engine.add

    def slow(request: Request) -> str:
        now[0] += 5.0
        return add(request)

    monkeypatch.setattr(tiny_llm.engine, "add", slow)
    watch = Stopwatch(lambda: now[0])
    list(tiny_llm.stream([Request("fox", GREEDY)], watch=watch))
    assert [one.ttft for one in watch.times()] == [5.0] and watch.summary().seconds == 5.0


def test_a_stream_grows_and_a_watch_sees_it(tiny_llm: LLM) -> None:
    watch = Stopwatch()
    lengths = [len(one.outputs[0].token_ids) for one in tiny_llm.stream([Request("fox", GREEDY)], watch=watch)]
    assert lengths == [1, 2, 3, 4, 5, 6]
    summary = watch.summary()
    assert (summary.requests, summary.failed, summary.output_tokens) == (1, 0, 6)
    (times,) = watch.times()
    assert times.arrival < times.tokens[0] < times.tokens[-1]


def test_leaving_a_stream_cancels_what_is_not_done(tiny_llm: LLM) -> None:
    for output in tiny_llm.stream([Request(f"prompt {number}", GREEDY) for number in range(3)]):
        assert not output.finished
        break
    tiny_llm.engine.step()
    assert not tiny_llm.engine.has_work
    assert len(tiny_llm.generate("fox", GREEDY)[0].outputs[0].token_ids) == 6


def test_a_stream_that_was_left_or_refused_leaves_its_ids_free(tiny_llm: LLM) -> None:
    asked = [Request("fox", GREEDY, "a"), Request("dog", GREEDY, "b")]
    for _ in tiny_llm.stream(asked):
        break
    with pytest.raises(ValueError, match="request_id 'a' is of a request that is not done"):
        list(tiny_llm.stream([*asked, asked[0]]))
    assert sum(one.finished for one in tiny_llm.stream(asked)) == 2
    assert not tiny_llm.engine.has_work and tiny_llm.engine.held == (0, 0)


@pytest.mark.parametrize(
    ("asked", "options", "said"),
    [
        (["fox"], {}, r"requests\[0\] must be a Request, not str 'fox'"),
        ([Request("fox", GREEDY), None], {}, r"requests\[1\] must be a Request, not NoneType"),
        ([None], {"refuse": False}, r"requests\[0\] must be a Request, not NoneType"),
        (Request("fox", GREEDY), {}, "requests must be a list of Request"),
        (
            [Request("fox", GREEDY)],
            {"in_flight": -1},
            "in_flight must be a whole number of at least 1, or None, not -1",
        ),
        ([Request("fox", GREEDY)], {"in_flight": 1.5}, "in_flight must be a whole number"),
    ],
)
def test_a_stream_of_what_are_no_requests(tiny_llm: LLM, asked: Any, options: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        list(tiny_llm.stream(asked, **options))
    assert not tiny_llm.engine.has_work


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"params": {"temperature": 0}}, "params must be SamplingParams, not dict"),
        ({"salt": None}, "salt must be a text, not NoneType"),
        ({"salt": "\ud800"}, r"salt is no text: its character 1 is the lone surrogate U\+D800"),
        ({"request_id": 5}, "request_id must be a text, not int 5"),
    ],
)
def test_a_request_that_is_none(fields: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Request("fox", **fields)


@pytest.mark.parametrize("prompt", [5, None, {"a": 1}, [1.5], "\ud800"])
def test_what_is_no_prompt_fails_alone(tiny_llm: LLM, prompt: Any) -> None:
    asked = [Request(prompt, GREEDY, "bad"), Request("fox", GREEDY, "good")]
    done = {one.request_id: one.outputs[0] for one in tiny_llm.stream(asked, refuse=False) if one.finished}
    assert "the prompt" in done["bad"].error and done["good"].finish_reason == "length"


def test_a_fault_in_taking_one_request_leaves_the_others(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = tiny_llm.tokenizer.encode

    def broken(text: str) -> list[int]:
        return encode(text) if text == "fox" else [][0]

    monkeypatch.setattr(tiny_llm.tokenizer, "encode", broken)
    asked = [Request("dog", GREEDY, "bad"), Request("fox", GREEDY, "good")]
    done = {one.request_id: one.outputs[0] for one in tiny_llm.stream(asked, refuse=False) if one.finished}
    assert done["bad"].error.startswith("it was stopped by IndexError") and done["good"].finish_reason == "length"


def test_one_stream_at_a_time(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream([Request("fox", GREEDY)])
    next(stream)
    with pytest.raises(RuntimeError, match="another stream"):
        tiny_llm.generate("fox", GREEDY)
    assert [one.finished for one in stream][-1]


def test_a_refused_request_comes_back_and_the_others_go_on(tiny_llm: LLM) -> None:
    asked = [Request([VOCABULARY], GREEDY, "bad"), Request("", GREEDY, "empty"), Request("fox", GREEDY, "good")]
    watch = Stopwatch()
    done = {
        one.request_id: one.outputs[0]
        for one in tiny_llm.stream(asked, in_flight=1, refuse=False, watch=watch)
        if one.finished
    }
    assert [done[name].finish_reason for name in ("bad", "empty", "good")] == ["error", "error", "length"]
    assert str(VOCABULARY) in done["bad"].error and "empty" in done["empty"].error
    assert (watch.summary().requests, watch.failed) == (1, 2)


def test_it_leaves_the_threads_of_its_process_as_they_are(tiny_llm: LLM) -> None:
    before = torch.get_num_threads()
    tiny_llm.generate("fox", GREEDY)
    assert torch.get_num_threads() == before


def test_models_and_devices_that_are_not_there(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DeepInferError, match="is no folder"):
        LLM("deepseek-ai/DeepSeek-V4.1-Flash")
    with pytest.raises(DeepInferError, match=r"config\.json"):
        LLM(tmp_path)
    with pytest.raises(ValueError, match="device must be"):
        LLM(tiny_folder, device="gpu")
    with pytest.raises(DeepInferError, match="there is no device cuda:99"):
        LLM(tiny_folder, device="cuda:99")
    with pytest.raises(ValueError, match="max_num_seqs must be"):
        LLM(tiny_folder, max_num_seqs=0)
    for wrong in (
        {"memory_fraction": "0.5"}, {"prefix_caching": "no"}, {"seed": "x"}, {"engram_rows": 1.5}, {"keep_tokens": "x"},
        {"device": []}, {"device": "cpu:3"}, {"backend": "x"}, {"engram_device": 5},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            LLM(tiny_folder, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="load_format must be"):
        LLM(tiny_folder, device="cpu", load_format="fast")  # type: ignore[arg-type]
    with pytest.raises(DeepInferError, match="triton backend needs a GPU") as told:
        LLM(tiny_folder, device="cpu", backend="triton")
    assert told.value.next_step == "--backend reference"


def test_dummy_weights_need_config_json_alone_and_take_token_ids(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    llm = LLM(model=tmp_path, device="cpu", backend="reference", load_format="dummy", max_num_seqs=2, max_model_len=64)
    assert llm.max_model_len == 64
    (output,) = llm.generate([0, 5, 9], SamplingParams(temperature=0, max_tokens=3))
    assert len(output.outputs[0].token_ids) == 3 and output.outputs[0].text == ""
    with pytest.raises((ValueError, DeepInferError), match="token"):
        llm.generate("fox")
