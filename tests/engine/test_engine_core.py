"""The engine on the tiny model: what a request gets, alone and beside others."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from deepinfer.cache.pool import Caches
from deepinfer.engine.sequence import Request
from deepinfer.errors import DeepInferError
from deepinfer.model.batch import RowSpec
from deepinfer.model.load import LoadedModel
from deepinfer.model.model import Model
from deepinfer.sampling.params import SamplingParams, Structure
from deepinfer.sampling.sampler import Sampler, SampleRow
from tests.engine.tiny_engine import answers, ask, engine, greedy, loaded, prompt, quiet_cpu, run

cpu = pytest.fixture(autouse=True, scope="module")(quiet_cpu)


def logits_of(tokens: list[int]) -> torch.Tensor:
    """The last logits of a prompt that is computed whole, without an engine."""
    model = loaded().model
    caches = Caches.allocate(model.config, "cpu", blocks=10, slots=2)
    blocks = list(range(1, 10))
    return model.forward(model.batch([RowSpec(tokens, 0, len(tokens), 1, blocks)], decode=False), caches)[0]


def test_every_token_is_the_likeliest_after_the_whole_text_so_far() -> None:
    tokens = prompt(40)
    output = ask(tokens, greedy(3))
    generated = output.outputs[0].token_ids
    assert len(generated) == 3 and output.finished and output.outputs[0].finish_reason == "length"
    for count in range(3):
        assert logits_of(tokens + generated[:count]).argmax() == generated[count]


def test_a_text_is_taken_and_told() -> None:
    output = ask("The quick brown fox", greedy(6))
    tokenizer = loaded().tokenizer
    assert tokenizer is not None
    assert output.prompt == "The quick brown fox"
    assert output.prompt_token_ids == tokenizer.encode("The quick brown fox")
    assert output.outputs[0].text == tokenizer.decode(output.outputs[0].token_ids)


def test_outputs_grow_step_by_step() -> None:
    running = engine()
    name = running.add(Request(prompt(20), greedy(4)))
    assert running.has_work
    seen = []
    while running.has_work:
        (output,) = running.step()
        assert output.request_id == name
        seen.append((len(output.outputs[0].token_ids), output.finished))
    assert seen == [(1, False), (2, False), (3, False), (4, True)]
    assert running.step() == []


def test_chunks_prefixes_and_neighbours_change_no_bit() -> None:
    shared = prompt(150)
    requests = [
        Request(shared + prompt(20, 1), greedy(3, logprobs=3)),
        Request(shared + prompt(30, 2), SamplingParams(max_tokens=2, seed=5, logprobs=1, n=2)),
        Request(shared[:140], SamplingParams(max_tokens=4, seed=-9, top_p=0.9, top_k=40)),
    ]
    alone = [answers(ask(list(one.prompt), one.params, chunk_tokens=1024, prefix_caching=False)) for one in requests]
    together = engine(chunk_tokens=90)
    first = run(together, requests[:2])
    second = run(together, [requests[2], dataclasses.replace(requests[0], request_id="again")])
    assert [answers(one) for one in first + second] == [*alone, alone[0]]
    assert [one.cached_tokens for one in second] == [128, 128]


def test_an_answer_that_goes_on_is_found_and_changes_no_bit() -> None:
    running = engine()
    first = ask(prompt(122), greedy(10), running)
    longer = first.prompt_token_ids + first.outputs[0].token_ids + prompt(3, 7)
    told = ask(longer, greedy(2, logprobs=1), running)
    assert told.cached_tokens == 128
    assert answers(told) == answers(ask(longer, greedy(2, logprobs=1), chunk_tokens=1024))


@pytest.mark.parametrize(("truncation", "length"), [("off", 120), ("mask", 250), ("compact", 250)])
def test_preemption_changes_no_bit(truncation: str, length: int) -> None:
    """Truncation counts from the prompt's end, also where what was generated is prefilled anew."""
    model, tokens = loaded(truncation=truncation), 128 - length % 128 + 10
    requests = [Request(prompt(length, seed), greedy(tokens, logprobs=1)) for seed in range(2)]
    alone = [answers(ask(list(one.prompt), one.params, engine(model))) for one in requests]
    small = engine(model, blocks=2 * (length // 128 + 1) + 2)
    preempted = 0

    def count() -> None:
        nonlocal preempted
        preempted = max(preempted, sum(one.preemptions for one in small._scheduler.waiting))

    assert [answers(one) for one in run(small, requests, each=count)] == alone
    assert preempted > 0


def test_completions_of_one_prompt_are_those_of_their_seeds() -> None:
    tokens = prompt(30)
    output = ask(tokens, SamplingParams(max_tokens=3, n=3, seed=2**63 - 2))
    assert [one.index for one in output.outputs] == [0, 1, 2]
    for index, seed in enumerate((2**63 - 2, 2**63 - 1, -(2**63))):
        assert (
            ask(tokens, SamplingParams(max_tokens=3, seed=seed)).outputs[0].token_ids == output.outputs[index].token_ids
        )


def test_a_draw_depends_on_the_seed_and_on_how_many_tokens_stand_before_it() -> None:
    tokens, params = prompt(20), SamplingParams(max_tokens=3, seed=2**63 - 1, n=2)
    sampler = Sampler(loaded().config.vocab_size, "cpu")
    for index, one in enumerate(ask(tokens, params).outputs):
        for count, token in enumerate(one.token_ids):
            row = SampleRow(params, params.seed_in_effect + index, len(tokens) + count)
            (drawn,) = sampler.sample(logits_of(tokens + one.token_ids[:count])[None], [row])
            assert drawn.token_id == token


def test_what_ends_a_completion() -> None:
    tokens = prompt(10)
    free = ask(tokens, greedy(5)).outputs[0].token_ids
    stop = free[2]
    place = free.index(stop)
    ended = ask(tokens, greedy(5, stop_token_ids=(stop,))).outputs[0]
    assert (ended.finish_reason, ended.stop, ended.token_ids) == ("stop", stop, free[: place + 1])
    tokenizer = loaded().tokenizer
    assert tokenizer is not None and ended.text == tokenizer.decode(free[:place])
    later = ask(tokens, greedy(5, stop_token_ids=(stop,), min_tokens=place + 2)).outputs[0]
    assert len(later.token_ids) >= place + 2 and stop not in later.token_ids[: place + 1]
    bounded = ask(tokens, greedy(5), max_model_len=13).outputs[0]
    assert (bounded.finish_reason, bounded.token_ids) == ("length", free[:3])


def test_the_models_own_end_unless_it_is_ignored() -> None:
    """A model whose head gives the end a bias that always wins."""
    own = loaded()
    end = own.stop_ids[0]
    head = own.model.weights.head.clone()
    tokens = prompt(20)
    head[end] = head[ask(tokens, greedy(1)).outputs[0].token_ids[0]] * 2
    ending = with_weights(own, head=head)
    told = ask(tokens, greedy(5, ignore_eos=False), engine(ending)).outputs[0]
    assert (told.finish_reason, told.stop, told.token_ids, told.text) == ("stop", end, [end], "")
    assert len(ask(tokens, greedy(5), engine(ending)).outputs[0].token_ids) == 5
    banned = ask(tokens, greedy(5, ignore_eos=False, min_tokens=3), engine(ending)).outputs[0]
    assert end not in banned.token_ids[:3] and len(banned.token_ids) >= 3


def test_a_stop_string_ends_the_text_before_it() -> None:
    tokens = prompt(30)
    free = ask(tokens, greedy(8)).outputs[0]
    stop = free.text[len(free.text) // 2 :][:2]
    ended = ask(tokens, greedy(8, stop=(stop,))).outputs[0]
    assert (ended.finish_reason, ended.stop) == ("stop", stop)
    assert ended.text == free.text[: free.text.index(stop)] and len(ended.token_ids) < 8


def test_raw_logprobs_of_greedy_tokens_are_those_of_the_models_distribution() -> None:
    tokens = prompt(40)
    output = ask(tokens, greedy(2, logprobs=4))
    completion = output.outputs[0]
    assert completion.logprobs is not None and len(completion.logprobs) == 2
    for count, told in enumerate(completion.logprobs):
        expected = logits_of(tokens + completion.token_ids[:count]).double().log_softmax(0)
        assert told.token_id == completion.token_ids[count] and told.rank == 1 and told.logprob < -0.01
        assert math.isclose(told.logprob, float(expected.max()), abs_tol=1e-4)
        assert [one for one, _ in told.top] == expected.topk(4).indices.tolist()


def test_prompt_logprobs_are_the_same_in_chunks_and_with_prefixes_cached() -> None:
    tokens = prompt(140)
    whole = ask(tokens, greedy(1, prompt_logprobs=1), chunk_tokens=1024, prefix_caching=False)
    assert whole.prompt_logprobs is not None and len(whole.prompt_logprobs) == 140
    assert whole.prompt_logprobs[0] is None and None not in whole.prompt_logprobs[1:]
    assert [one.token_id for one in whole.prompt_logprobs[1:] if one] == tokens[1:]
    running = engine(chunk_tokens=60)
    ask(tokens, greedy(1), running)
    assert answers(ask(tokens, greedy(1, prompt_logprobs=1, n=2), running))[-1] == answers(whole)[-1]


def test_cancelling_frees_what_is_held_and_tells_what_there_is() -> None:
    running = engine()
    kept, cancelled = (running.add(Request(prompt(20, seed), greedy(6))) for seed in (1, 2))
    running.step()
    assert running.held == (2, 2)
    assert running.cancel(cancelled) and not running.cancel(cancelled) and not running.cancel("nobody")
    assert running.held == (1, 1)
    found = {one.request_id: one for one in running.step()}
    assert found[cancelled].outputs[0].finish_reason == "cancelled" and len(found[cancelled].outputs[0].token_ids) == 1
    while running.has_work:
        found.update((one.request_id, one) for one in running.step())
    assert answers(found[kept]) == answers(ask(prompt(20, 1), greedy(6)))
    assert running.held == (0, 0)


def test_a_request_that_is_cancelled_before_its_first_step() -> None:
    running = engine()
    running.cancel(running.add(Request(prompt(20), SamplingParams(n=2))))
    (output,) = running.step()
    assert [one.finish_reason for one in output.outputs] == ["cancelled", "cancelled"] and not running.has_work


def with_weights(own: LoadedModel, **changed: torch.Tensor) -> LoadedModel:
    """The model with other weights."""
    weights = dataclasses.replace(own.model.weights, **changed)
    assert own.tokenizer is not None
    return dataclasses.replace(own, model=Model(own.config, weights, lookup=own.tokenizer.lookup()))


def test_a_request_whose_logits_are_no_numbers_fails_alone() -> None:
    own = loaded()
    embed = own.model.weights.embed.clone()
    embed[77] = math.nan
    broken = with_weights(own, embed=embed)
    good = [token if token != 77 else 78 for token in prompt(60)]
    bad = [*good[:40], 77, *good[40:]]
    running = engine(broken)
    requests = [Request(tokens, greedy(3, prompt_logprobs=0)) for tokens in (good, bad, good[:20])]
    first, failed, last = run(running, requests)
    assert failed.outputs[0].finish_reason == "error" and "no numbers" in failed.outputs[0].error
    assert failed.outputs[0].token_ids == []
    for output, tokens in ((first, good), (last, good[:20])):
        assert answers(output) == answers(ask(tokens, greedy(3, prompt_logprobs=0), engine(broken)))
    assert answers(ask(good, greedy(2), running)) == answers(ask(good, greedy(2), engine(broken)))


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (torch.OutOfMemoryError("no"), DeepInferError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), DeepInferError),
    ],
)
def test_a_step_that_breaks_is_computed_anew(
    monkeypatch: pytest.MonkeyPatch, problem: BaseException, told: type[BaseException]
) -> None:
    expected = [answers(ask(prompt(40, seed), greedy(4))) for seed in (1, 2)]
    running = engine()
    names = [running.add(Request(prompt(40, seed), greedy(4))) for seed in (1, 2)]
    running.step()

    def breaks(*_: object) -> None:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(running._runner._sampler, "start", breaks)
        with pytest.raises(told):
            running.step()
    assert running.held == (0, 0)
    found = {}
    while running.has_work:
        found.update((one.request_id, one) for one in running.step())
    assert [answers(found[name]) for name in names] == expected


def test_a_structure_is_kept_to_and_ends_the_text() -> None:
    pytest.importorskip("xgrammar")
    running = engine()
    structures = (
        Structure("choice", ("maybe", "perhaps")),
        Structure("regex", "[0-9]{3}"),
        Structure("json", {"enum": [12, {"yes": None}]}),
    )
    requests = [
        Request(prompt(8), greedy(30, structure=one, ignore_eos=index == 1)) for index, one in enumerate(structures)
    ]
    chosen, digits, parsed = (one.outputs[0] for one in run(running, requests))
    assert chosen.text in ("maybe", "perhaps") and len(digits.text) == 3 and digits.text.isdigit()
    assert json.loads(parsed.text) in (12, {"yes": None})
    end = loaded().stop_ids[0]
    assert [(one.finish_reason, one.stop, one.token_ids[-1]) for one in (chosen, digits, parsed)] == [
        ("stop", end, end)
    ] * 3


def test_compact_truncation_is_mask_truncation_with_prefixes_cached() -> None:
    tokens = prompt(280)
    expected = answers(ask(tokens, greedy(2), engine(loaded(truncation="mask"), chunk_tokens=200)))
    compact = engine(loaded(truncation="compact"))
    assert answers(ask(tokens, greedy(2), compact)) == expected
    again = ask(tokens, greedy(2), compact)
    assert answers(again) == expected and again.cached_tokens == 128
