"""The model's forward on the reference kernels: against the oracle, and against itself in other pieces.

The reference's products are float64 sums whose order the BLAS chooses by the number of rows, so that they may differ in
their last bits (2^-53) between batches. Each is rounded to float32 or bfloat16 before anything else is done with it,
and the tests ask for the same bits after these roundings: a sum would have to lie within 2^-53 of a border for one to
differ.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deepinfer.model import prefill
from deepinfer.model.batch import RowSpec
from deepinfer.model.model import Forced, Trace
from deepinfer.model.threads import fitting_threads
from deepinfer.reference import Forced as OracleForced
from deepinfer.reference import Oracle, Output, Precision
from tests.engine.model_runs import (
    FEW_CANDIDATES,
    Story,
    caches,
    config,
    forward,
    lookup,
    model,
    prompt,
    run,
    single_thread,
    tensors,
)

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)


def oracle(tokens: list[int], candidates: int, sums: str = "fp64", forced: OracleForced | None = None) -> Output:
    own = Oracle(config(candidates), tensors(), Precision(sums=sums), lookup=lookup())  # type: ignore[arg-type]
    return own(torch.tensor(tokens), forced=forced or OracleForced())


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def test_layers_follow_the_oracle_with_its_choices() -> None:
    """At every layer no further off than twice what the order of sums alone does, or 5e-3."""
    tokens = prompt(150)
    free = oracle(tokens, FEW_CANDIDATES)
    choices = (
        {layer: routing.ids for layer, routing in free.routing.items()},
        {layer: choice.entries for layer, choice in free.choices.items()},
    )
    orders = [oracle(tokens, FEW_CANDIDATES, sums, OracleForced(*choices)) for sums in ("fp32", "fp32-reversed")]
    own, trace = model(candidates=FEW_CANDIDATES), Trace()
    batch = own.batch([Story(tokens).rows(150, "all")], decode=False)
    logits = own.forward(batch, caches(), forced=Forced(*choices), trace=trace)
    pairs = {f"layer {layer}": (trace.hidden[layer], free.hidden[layer]) for layer in free.hidden}
    noise = {f"layer {layer}": distance(orders[0].hidden[layer], orders[1].hidden[layer]) for layer in free.hidden}
    for name, (found, expected) in {**pairs, "logits": (logits, free.logits)}.items():
        allowed = max(2 * noise.get(name, distance(orders[0].logits, orders[1].logits)), 5e-3)
        error = distance(found, expected)
        print(f"{name}: {error:.1e}, allowed {allowed:.1e}")
        assert error <= allowed, name


def test_free_choices_are_the_oracles_in_the_first_layers_that_choose() -> None:
    """Before differences have added up there is nothing that could be chosen otherwise."""
    tokens = prompt(150)
    expected = oracle(tokens, FEW_CANDIDATES)
    own, trace = model(candidates=FEW_CANDIDATES), Trace()
    own.forward(own.batch([Story(tokens).rows(150)], decode=False), caches(), trace=trace)
    assert trace.routing[0].equal(expected.routing[0].ids.int())
    same = (trace.entries[2] == expected.choices[2].entries).all(-1).float().mean()
    assert same > 0.98
    assert trace.entries.keys() == expected.choices.keys() and trace.rows[11] is None


@pytest.mark.parametrize("length", [2, 33, 64, 129, 150])
def test_a_prefill_equals_one_of_a_token_less_and_a_decode_step(length: int) -> None:
    own, tokens = model(candidates=FEW_CANDIDATES), prompt(length)
    assert run(tokens, [length], own=own).equal(run(tokens, [length - 1], own=own, decoded=[1]))


@pytest.mark.parametrize("cuts", [(1, 2, 3), (37, 75, 76), (127, 129, 138)])
def test_chunks_equal_the_whole(cuts: tuple[int, ...]) -> None:
    own, tokens = model(candidates=FEW_CANDIDATES), prompt(140)
    assert run(tokens, [*cuts, 140], own=own).equal(run(tokens, [140], own=own))


def test_steps_of_several_rows_and_rows_taken_back_equal_the_whole() -> None:
    own, tokens = model(candidates=FEW_CANDIDATES), prompt(150)
    whole = run(tokens, [150], own=own)
    assert run(tokens, [139], own=own, decoded=[3, 1, 6, 1]).equal(whole)
    memory, story = caches(), Story(tokens)
    forward(own, memory, [story.rows(126)])
    for taken in (1, 4, 2, 5):
        wrong = [*tokens[: story.done + taken], *prompt(6 - taken, seed=5)]
        row = RowSpec(wrong, story.done, 6, story.slot, story.blocks)
        forward(own, memory, [row], decode=True)
        story.done += taken  # of the six rows that many were right
    for _ in range(2):
        logits = forward(own, memory, [story.rows(6)], decode=True)
    assert story.done == len(tokens) and logits[-1].equal(whole)


def test_alone_and_in_a_batch_are_the_same() -> None:
    own, memory = model(candidates=FEW_CANDIDATES), caches()
    lengths = (130, 1, 40, 77, 64)
    stories = [Story(prompt(length + 6, seed=length), index) for index, length in enumerate(lengths)]
    cuts = [max(1, length // 3) for length in lengths]
    forward(own, memory, [story.rows(cut, "none") for story, cut in zip(stories, cuts, strict=True)])
    left = [story.rows(n - cut) for story, n, cut in zip(stories, lengths, cuts, strict=True) if n > cut]
    forward(own, memory, left)
    for step in (1, 2, 3):
        logits = forward(own, memory, [story.rows(step) for story in reversed(stories)], decode=True)
    for story, length, found in zip(reversed(stories), reversed(lengths), logits, strict=True):
        assert found.equal(run(story.tokens, [length], own=own, decoded=[1, 2, 3])), length


def test_padding_and_a_broken_sequence_leave_the_others_alone() -> None:
    own, memory = model(candidates=FEW_CANDIDATES), caches()
    stories = [Story(prompt(70, seed=index), index) for index in range(3)]
    forward(own, memory, [story.rows(67) for story in stories])
    alone = run(stories[1].tokens, [67], own=own, decoded=[3])
    memory.slots_buffer[stories[0].slot].fill_(0xFF)
    padding = RowSpec([0], 0, 1, 0, [0])
    rows = [stories[0].rows(3), padding, stories[1].rows(3), stories[2].rows(3), padding, padding]
    logits = forward(own, memory, rows, decode=True)
    assert logits[0].isnan().all() and logits[2].equal(alone) and logits[3].isfinite().all()


def test_only_the_wanted_rows_have_logits() -> None:
    own, tokens = model(), prompt(60)
    every = forward(own, caches(), [Story(tokens).rows(60, "all")])
    assert every.shape == (60, config().vocab_size) and every.dtype == torch.float32 and every.isfinite().all()
    assert forward(own, caches(), [Story(tokens).rows(60)]).equal(every[-1:])
    assert forward(own, caches(), [Story(tokens).rows(60, "none")]).shape == (0, config().vocab_size)


def test_a_prefix_copied_to_another_slot_goes_on_as_if_computed() -> None:
    """What a cache of prefixes does: the blocks are shared, the state is copied."""
    own, memory, tokens = model(candidates=FEW_CANDIDATES), caches(), prompt(150)
    first = Story(tokens)
    forward(own, memory, [first.rows(128, "none")])
    memory.copy_slots([first.slot], [9])
    rest = RowSpec(tokens, 128, 22, 9, [first.blocks[0], 2])
    assert forward(own, memory, [rest])[-1].equal(run(tokens, [150], own=own))


def test_rows_scored_in_parts_are_chosen_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    own, tokens = model(candidates=FEW_CANDIDATES), prompt(120)
    whole = run(tokens, [120], own=own)
    monkeypatch.setattr(prefill, "MOST_SCORE_BYTES", 4 * 120 * 7)
    assert run(tokens, [120], own=own).equal(whole)


@pytest.mark.parametrize("decode", [False, True])
def test_the_own_choices_forced_change_nothing_and_the_layers_that_are_left_choose_alike(decode: bool) -> None:
    own, tokens = model(candidates=FEW_CANDIDATES), prompt(120)

    def last(forced: Forced | None, trace: Trace | None = None) -> torch.Tensor:
        memory, story = caches(), Story(tokens)
        forward(own, memory, [story.rows(116)])
        return own.forward(own.batch([story.rows(4)], decode=decode), memory, forced=forced, trace=trace)

    trace = Trace()
    free = last(None, trace)
    assert last(Forced(trace.routing, trace.entries)).equal(free)
    candidates = config().indexer.candidate_source
    assert candidates is not None
    assert last(Forced({}, {candidates: trace.entries[candidates]})).equal(free)
    other = trace.entries[candidates].clone()
    other[:, 1:] = -1
    assert not last(Forced({}, {candidates: other})).equal(free)


def test_a_memory_on_the_host_is_read_when_the_batch_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where both are one device, told that they are not."""
    own, tokens = model(), prompt(60)
    expected = run(tokens, [50], own=own, decoded=(4, 6))
    for memory in own.engram.values():
        monkeypatch.setattr(memory, "on_host", True)
    batch = own.batch([Story(tokens).rows(5)], decode=False)
    assert batch.fetched.keys() == own.engram.keys() == {1, 4}
    assert run(tokens, [50], own=own, decoded=(4, 6)).equal(expected)
    other = Story(prompt(5, seed=1)).rows(5)
    strange = replace(batch, fetched=own.batch([other], decode=False).fetched)
    assert not own.forward(strange, caches()).equal(own.forward(batch, caches()))


def test_a_small_model_takes_one_thread_of_a_cpu_and_gives_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    own, inside = model(), []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    try:
        for hidden, device in ((own.config.hidden, "cpu"), (5120, "cpu"), (128, "cuda")):
            with fitting_threads(hidden, torch.device(device)):
                inside.append(torch.get_num_threads())
            assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError), fitting_threads(128, torch.device("cpu")):
            raise RuntimeError
        assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with fitting_threads(128, torch.device("cpu")):
            inside.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(1)
    assert inside == [1, 2, 2, 2]


def test_what_a_forward_cannot_do_is_refused() -> None:
    own = model()
    with pytest.raises(ValueError, match="4097 tokens is longer than the 4096"):
        forward(own, caches(), [RowSpec([1] * 4097, 0, 4097, 1, range(1, 34))])
    with pytest.raises(ValueError, match="7 rows a sequence: caches were made for 6"):
        forward(own, caches(), [RowSpec([1] * 7, 0, 7, 1, [1])], decode=True)
