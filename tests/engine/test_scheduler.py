"""The scheduler's rules, each on a device that notices every wrong block, slot, position or copy."""

from __future__ import annotations

import dataclasses

import pytest

from deepinfer.engine.scheduler import PROMPTS
from deepinfer.engine.sequence import Sequence, Status
from deepinfer.engine.step import Limits
from tests.engine.scheduler_world import World


def prompt(length: int, first: int = 0) -> list[int]:
    return [first + index % 97 for index in range(length)]


def run(world: World, sequences: list[Sequence], tokens: int, steps: int = 1000) -> int:
    """Step until each has so many tokens more than its prompt. Returns how many steps that took."""
    for count in range(1, steps):
        assert world.step() is not None
        for one in sequences:
            if one.status is not Status.FINISHED and one.generated >= tokens:
                world.scheduler.remove(one)
        if all(one.status is Status.FINISHED for one in sequences):
            return count
    raise AssertionError(f"not done after {steps} steps")


def test_nothing_to_do_is_no_step() -> None:
    assert World().step() is None


def test_a_prompt_is_prefilled_in_chunks_that_end_at_whole_blocks_and_then_decoded() -> None:
    world = World()
    one = world.arrive(prompt(600))
    seen = []
    for _ in range(5):
        step = world.step()
        assert step is not None
        seen.append(([(c.start, c.count) for c in step.prefill], [(c.start, c.count) for c in step.decode]))
    assert seen == [
        ([(0, 256)], []),
        ([(256, 256)], []),
        ([(512, 88)], []),
        ([], [(600, 1)]),
        ([], [(601, 1)]),
    ]
    assert one.generated == 3 and world.device.saved == 2 and world.scheduler.held == (5, 1)


def test_without_prefix_caching_a_chunk_takes_what_it_may() -> None:
    world = World(limits=Limits(sequences=4, chunk_tokens=300, length=1024, prefix_caching=False))
    world.arrive(prompt(600))
    steps = [world.step() for _ in range(3)]
    assert [[(c.start, c.count) for c in step.prefill] for step in steps if step] == [[(0, 300)], [(300, 300)], []]
    assert world.device.saved == 0


def test_what_is_done_gives_everything_back() -> None:
    world = World()
    sequences = [world.arrive(prompt(length, length)) for length in (1, 127, 128, 129, 300, 511)]
    run(world, sequences, 3)
    assert world.scheduler.held == (0, 0)
    assert world.step() is None


def test_cancelling_while_waiting_in_the_prompt_and_in_decode() -> None:
    world = World(limits=Limits(sequences=2, chunk_tokens=128, length=1024))
    first, second, third = (world.arrive(prompt(300, first)) for first in (0, 100, 200))
    world.step()
    assert (first.status, second.status, third.status) == (Status.RUNNING, Status.RUNNING, Status.WAITING)
    world.scheduler.remove(third)
    world.scheduler.remove(first)
    for _ in range(4):
        world.step()
    assert second.generated
    world.scheduler.remove(second)
    world.scheduler.remove(second)
    assert world.scheduler.held == (0, 0) and world.step() is None


def test_a_prompt_that_came_before_is_found_up_to_its_last_whole_block() -> None:
    world = World()
    first = world.arrive(prompt(300))
    run(world, [first], 1)
    computed = world.device.computed
    again = world.arrive(prompt(300))
    run(world, [again], 1)
    assert again.reused == 256 and world.device.computed - computed == 300 - 256
    assert world.device.restored == 1


def test_what_was_generated_is_found_too() -> None:
    world = World()
    first = world.arrive(prompt(200))
    run(world, [first], 60)
    longer = world.arrive([*first.tokens, 1, 2, 3])
    run(world, [longer], 1)
    assert longer.reused == 256


def test_other_salts_share_nothing() -> None:
    world = World()
    run(world, [world.arrive(prompt(300))], 1)
    other = world.arrive(prompt(300), salt="another")
    run(world, [other], 1)
    assert other.reused == 0


def test_the_third_prompt_with_a_common_beginning_finds_it() -> None:
    """Where the second parts from the first nobody knew to keep a state; from then on it is known."""
    world = World(blocks=40, limits=Limits(sequences=4, chunk_tokens=1024, length=2048))
    common = prompt(500)
    sequences = [world.arrive(common + prompt(300, 1000 * index)) for index in (1, 2, 3)]
    for one in sequences[1:]:
        world.scheduler.remove(one)
    run(world, [sequences[0]], 1)
    for index, reused in ((2, 0), (3, 384), (4, 384)):
        one = world.arrive(common + prompt(300, 1000 * index))
        run(world, [one], 1)
        assert one.reused == reused


def test_completions_of_one_prompt_wait_for_the_first_and_hold_up_nobody() -> None:
    world = World()
    leader = world.arrive(prompt(600))
    followers = [world.arrive(prompt(600), leader=leader) for _ in range(2)]
    other = world.arrive(prompt(30, 500))
    world.step()
    assert all(one.status is Status.WAITING for one in followers) and other.status is Status.RUNNING
    run(world, [leader, *followers, other], 2)
    assert [one.reused for one in followers] == [512, 512]


def test_one_whose_grammar_is_compiled_yet_holds_up_nobody_and_keeps_its_place() -> None:
    world = World(limits=Limits(sequences=2, chunk_tokens=256, length=1024))
    first = world.arrive(prompt(30), compiling=True)
    others = [world.arrive(prompt(30, 100 * index)) for index in (1, 2, 3)]
    world.step()
    assert [one.status for one in (first, *others)] == [
        Status.COMPILING, Status.RUNNING, Status.RUNNING, Status.WAITING,
    ]  # fmt: skip
    world.scheduler.release(first)
    world.scheduler.remove(others[0])
    world.step()
    assert first.status is Status.RUNNING and others[2].status is Status.WAITING
    run(world, [first, *others[1:]], 2)
    gone = world.arrive(prompt(30), compiling=True)
    assert world.step() is None and world.scheduler.waiting == (gone,)
    world.scheduler.remove(gone)
    assert world.scheduler.waiting == () and world.scheduler.held == (0, 0)


def test_a_follower_goes_on_without_a_leader_that_was_cancelled() -> None:
    world = World()
    leader = world.arrive(prompt(600))
    follower = world.arrive(prompt(600), leader=leader)
    world.step()
    world.scheduler.remove(leader)
    run(world, [follower], 1)


def test_short_prompts_are_done_beside_a_long_one() -> None:
    world = World(blocks=80, limits=Limits(sequences=4, chunk_tokens=256, length=8192))
    long = world.arrive(prompt(8000))
    short = world.arrive(prompt(100, 300))
    world.step()
    assert short.generated == 1 and long.cached == 128
    alone = World(blocks=80, limits=world.limits)
    steps = run(alone, [alone.arrive(prompt(8000))], 1)
    more = [world.arrive(prompt(100, 400 + index)) for index in range(12)]
    assert run(world, [long, short, *more], 1) <= 2 * steps + 2


def test_no_more_prompts_are_begun_than_fill_a_step() -> None:
    world = World(blocks=200, slots=40, limits=Limits(sequences=30, chunk_tokens=256, length=4096))
    for index in range(9):
        world.arrive(prompt(1000, 100 * index))
    world.step()
    assert len(world.scheduler.running) == PROMPTS
    for one in world.scheduler.running + world.scheduler.waiting:
        world.scheduler.remove(one)
    for index in range(9):
        world.arrive(prompt(20, 100 * index))
    world.step()
    assert len(world.scheduler.running) == 9


def test_the_last_come_gives_way_and_ends_with_the_same_tokens() -> None:
    limits = Limits(sequences=4, chunk_tokens=256, length=1024)
    alone = World(limits=limits)
    expected = []
    for first in (0, 100):
        one = alone.arrive(prompt(250, first))
        run(alone, [one], 300)
        expected.append(one.tokens)
    world = World(blocks=8, limits=dataclasses.replace(limits, length=7 * 128))
    sequences = [world.arrive(prompt(250, first)) for first in (0, 100)]
    run(world, sequences, 300)
    assert [one.tokens for one in sequences] == expected
    assert sequences[0].preemptions == 0 and sequences[1].preemptions >= 1
    assert world.scheduler.held == (0, 0)


def test_nobody_overtakes_the_first_that_waits() -> None:
    world = World(blocks=9, limits=Limits(sequences=4, chunk_tokens=512, length=1024))
    first, large, small = (world.arrive(prompt(length, length)) for length in (500, 1000, 20))
    world.step()
    assert (first.status, large.status, small.status) == (Status.RUNNING, Status.WAITING, Status.WAITING)
    run(world, [first, large, small], 5)


def test_a_step_that_was_given_up_is_computed_anew() -> None:
    world = World()
    one = world.arrive(prompt(300))
    world.step()
    step = world.scheduler.schedule()
    assert step is not None
    world.device.states[one.slot] = -1
    world.scheduler.abandon(step)
    assert one.status is Status.WAITING and world.scheduler.held == (0, 0)
    run(world, [one], 2)
    assert one.reused == 0 and world.scheduler.held == (0, 0)


def test_what_was_kept_in_a_step_that_was_given_up_is_not_found() -> None:
    world = World()
    one = world.arrive(prompt(300))
    step = world.scheduler.schedule()
    assert step is not None
    world.device.run(step)
    assert world.scheduler.advance(step)  # and the copies are never made
    world.scheduler.abandon(step)
    run(world, [one], 2)
    again = world.arrive(prompt(300))
    run(world, [again], 1)
    assert (one.reused, again.reused) == (0, 256)


def test_a_prompt_of_whole_blocks_leaves_the_last_to_compute() -> None:
    world = World()
    run(world, [world.arrive(prompt(256))], 3)
    again = world.arrive(prompt(256))
    run(world, [again], 3)
    assert again.reused == 128


def test_what_a_longer_prompt_left_is_found_up_to_the_kept_tokens_only() -> None:
    limits = Limits(sequences=4, chunk_tokens=128, length=1024, truncation="mask", keep_tokens=140)
    world = World(limits=limits)
    run(world, [world.arrive(prompt(900))], 1)
    shorter = world.arrive(prompt(600))
    run(world, [shorter], 1)
    assert shorter.reused == 384


def test_truncation_leaves_the_kept_tokens_to_compute() -> None:
    limits = Limits(sequences=4, chunk_tokens=256, length=1024, truncation="compact", keep_tokens=140)
    world = World(limits=limits)
    run(world, [world.arrive(prompt(600))], 1)
    again = world.arrive(prompt(600))
    run(world, [again], 1)
    assert again.reused == 384


def test_a_prompt_whose_logits_are_all_wanted_is_computed_whole() -> None:
    world = World()
    run(world, [world.arrive(prompt(300))], 1)
    again = world.arrive(prompt(300))
    again.prompt_logprobs = [None] * 300
    run(world, [again], 1)
    assert again.reused == 0


@pytest.mark.parametrize("limits", [Limits(8, 256, 1024), Limits(4, 256, 2560), Limits(4, 0, 100), Limits(0, 256, 100)])
def test_limits_that_cannot_be_kept_are_refused(limits: Limits) -> None:
    with pytest.raises(ValueError, match=r"limits|fits"):
        World(limits=limits)
