"""Requests whose grammars are compiled while others go on: nobody waits for them, and nobody's answer changes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deepinfer import LLM, cli
from deepinfer.engine.core import Engine
from deepinfer.engine.outputs import RequestOutput
from deepinfer.engine.sequence import Request, Status
from deepinfer.sampling.params import SamplingParams, Structure
from deepinfer.structured_output import pool
from tests.engine.held_grammars import PATIENCE, Held, threads
from tests.engine.held_grammars import held as held_grammars
from tests.engine.tiny_engine import answers, ask, engine, greedy, prompt, quiet_cpu, run

cpu = pytest.fixture(autouse=True, scope="module")(quiet_cpu)
held = pytest.fixture(held_grammars)
NO_TEXT = Structure("ebnf", "root ::= root")
WHY_NONE = "structure: the grammar cannot be taken: no text matches it"


def structured(pattern: str, seed: int = 11, **fields: object) -> Request:
    return Request(
        prompt(20, seed), SamplingParams(seed=seed, max_tokens=8, structure=Structure("regex", pattern), **fields)
    )  # type: ignore[arg-type]


def states(running: Engine) -> list[Status]:
    return [one.status for one in running._scheduler.waiting]


def rest(running: Engine) -> dict[str, RequestOutput]:
    """All that is told until nothing is left to do."""
    found: dict[str, RequestOutput] = {}
    while running.has_work:
        found.update((one.request_id, one) for one in running.step())
    assert running.held == (0, 0)
    return found


def test_others_go_on_while_a_grammar_is_compiled(held: Held) -> None:
    running = engine()
    waits = structured("[0-9]{2}", n=2)
    running.add(waits)
    running.add(Request(prompt(20, 5), greedy(3)))
    told = [one for _ in range(3) for one in running.step()]
    assert told[-1].finished and {one.request_id for one in told} == {told[-1].request_id}
    assert states(running) == [Status.COMPILING] * 2 and running.held == (0, 0) and running.has_work
    held.let()
    (output,) = rest(running).values()
    assert output.request_id == waits.request_id and answers(output) == answers(ask(list(waits.prompt), waits.params))


def test_answers_do_not_depend_on_when_grammars_are_ready(held: Held) -> None:
    requests = [structured(f"{word}[a-z]{{2}}", seed) for seed, word in enumerate(("pa", "pb", "pc"))]
    requests.append(Request(prompt(30, 4), SamplingParams(seed=9, max_tokens=8, ignore_eos=True)))
    told: list[dict[str, RequestOutput]] = []
    for order in (("pa", "pb", "pc"), ("pb", "pc", "pa")):
        running, found = engine(max_num_seqs=2), dict[str, RequestOutput]()
        for one in requests:
            running.add(one)
        for word in order:
            for _ in range(2):
                found.update((one.request_id, one) for one in running.step())
            held.let(word)
        told.append(found | rest(running))
        held.hold()
    for one in requests:
        expected = answers(told[0][one.request_id])
        assert answers(told[1][one.request_id]) == expected
    held.let()
    for one in requests[2:]:
        assert answers(told[0][one.request_id]) == answers(ask(list(one.prompt), one.params))


def test_what_was_compiled_before_waits_for_nothing(held: Held) -> None:
    running = engine()
    held.let()
    first = run(running, [structured("[a-f]{2}")])
    running.add(structured("[a-f]{2}"))
    (output,) = running.step()
    assert len(output.outputs[0].token_ids) == 1 and held.begun == ["[a-f]{2}"]
    assert [answers(one) for one in rest(running).values()] == [answers(one) for one in first]


def test_one_is_cancelled_or_dropped_while_its_grammar_is_compiled(held: Held) -> None:
    running = engine()
    cancelled, dropped, kept = (running.add(structured("x[0-9]", seed)) for seed in (1, 2, 3))
    queued = [running.add(structured(f"q[{index}]", 1)) for index in range(3)]
    assert running.cancel(cancelled) and not running.cancel(cancelled)
    for name in (dropped, *queued):
        running.drop(name)
    (output,) = running.step()
    assert output.request_id == cancelled and output.outputs[0].finish_reason == "cancelled"
    held.let()
    assert set(rest(running)) == {kept}
    assert "q[2]" not in held.begun, "nobody waited for it any more"
    assert running.add(structured("x[0-9]")) and rest(running), "ids and grammars go on"


def test_an_error_of_compiling_ends_its_request_alone(held: Held) -> None:
    running = engine()
    bad = Request(prompt(8), SamplingParams(n=2, structure=NO_TEXT))
    good = Request(prompt(20, 5), greedy(6))
    held.let()
    failed, answered = run(running, [bad, good])
    assert [(one.finish_reason, one.error) for one in failed.outputs] == [("error", WHY_NONE)] * 2
    assert answers(answered) == answers(ask(list(good.prompt), good.params))


def test_a_grammar_that_takes_too_long_ends_its_request_alone(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine()
    assert running._grammars is not None
    monkeypatch.setattr(running._grammars, "_longest", 0.05)
    slow, other = structured("s[0-9]"), structured("t[0-9]")
    running.add(slow)
    (output,) = running.step()  # which waits, and no longer than that
    assert "compiling it takes more than 0.05 s" in output.outputs[0].error and not running.has_work
    monkeypatch.setattr(running._grammars, "_longest", PATIENCE)
    held.let("t[")
    assert run(running, [other])[0].outputs[0].finish_reason == "stop"


def test_a_matcher_that_cannot_be_made_ends_its_request_alone(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError("no room")

    running = engine()
    held.let()
    compiled = run(running, [structured("m[0-9]")])
    assert compiled[0].outputs[0].finish_reason == "stop"
    with monkeypatch.context() as patch:
        patch.setattr("deepinfer.structured_output.Grammar.matcher", fail)
        failed, plain = run(running, [structured("m[0-9]"), Request(prompt(20, 5), greedy(2))])
    assert failed.outputs[0].error == "it was stopped by MemoryError: no room"
    assert plain.outputs[0].finish_reason == "length"


def test_a_step_waits_where_nothing_else_is_to_be_done_and_wake_ends_that(held: Held) -> None:
    running = engine()
    running.add(structured("v[0-9]"))
    timer = threading.Timer(0.05, running.wake)
    timer.start()
    assert running.step() == [] and running.has_work, "it was woken, and nothing is ready"
    timer.join()
    running.wake()
    assert running.step() == []
    with held.let_soon():
        assert len(running.step()) == 1, "it waited for the grammar"


def test_closing_ends_all_and_leaves_no_thread(held: Held) -> None:
    running = engine()
    for index in range(4):
        running.add(structured(f"z[{index}]"))
    running.add(Request(prompt(20, 5), greedy(6)))
    running.step()
    held.wait_begun(2)
    with held.let_soon():  # when it is being closed
        running.close()
    running.close()
    assert not threads() and running.held == (0, 0) and not running.has_work and len(held.begun) == 2
    with pytest.raises(RuntimeError, match="was closed"):
        running.add(Request(prompt(20), greedy(1)))
    with pytest.raises(RuntimeError, match="was closed"):
        running.step()


def test_an_llm_keeps_the_order_of_prompts_and_tells_of_one_that_failed(held: Held, tiny_folder: Path) -> None:
    first, second = Structure("regex", "one[0-9]"), Structure("regex", "two[0-9]")
    with LLM(tiny_folder, device="cpu", backend="reference", max_num_seqs=2) as llm:
        params = [SamplingParams(max_tokens=8, seed=1, structure=one) for one in (first, NO_TEXT, second, None)]
        held.let("two")
        held.let("root")
        with held.let_soon():
            texts = [one.outputs[0] for one in llm.generate(["a", "b", "c", "d"], params)]
    assert (texts[0].text[:3], texts[1].error, texts[2].text[:3]) == ("one", WHY_NONE, "two")
    assert [one.finish_reason for one in texts] == ["stop", "error", "stop", texts[3].finish_reason] and not threads()
    with pytest.raises(RuntimeError, match="was closed"):
        llm.generate("a")
    with pytest.raises(RuntimeError, match="was closed"):
        next(llm.stream([Request("a")], refuse=False))


def test_ask_refuses_what_compiling_finds_as_it_refuses_other_structures(
    held: Held, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held.let()
    options = ["--model", str(tiny_folder), "--device", "cpu", "--quiet", "--structure", "ebnf", "root ::= root"]
    assert cli.main(["ask", *options, "fox"]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.startswith(f"error: the prompt cannot be taken: {WHY_NONE}\n  next step: ")


def test_a_stream_that_is_left_waits_for_no_grammar(held: Held, tiny_llm: LLM) -> None:
    answers = tiny_llm.stream([structured("left[0-9]"), Request(prompt(20, 5), greedy(6))])
    assert next(answers).outputs[0].token_ids
    answers.close()  # type: ignore[attr-defined]
    assert not tiny_llm.engine.has_work
    assert tiny_llm.generate("x", greedy(2))[0].outputs[0].finish_reason == "length"


def test_the_time_that_a_grammar_may_take_is_that_of_the_specification() -> None:
    assert pool.LONGEST_COMPILE == 20.0
