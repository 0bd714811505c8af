"""Whatever comes, in whatever order: nothing is lost, leaked, starved or read from the wrong place."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.sequence import Sequence, Status
from deepinfer.engine.step import Limits, Step
from tests.engine.scheduler_world import World, drawn

# A handful of beginnings, so that prompts have much in common and part at every place.
prompts = st.builds(
    lambda kind, common, own, length: (
        [kind * 1000 + i for i in range(common)] + [own * 7000 + i for i in range(length)]
    ),
    st.integers(0, 1),
    st.integers(0, 500),
    st.integers(0, 3),
    st.integers(1, 300),
)
arrivals = st.tuples(st.just("arrive"), prompts, st.integers(1, 200), st.integers(1, 3), st.booleans())
events = st.lists(
    st.one_of(
        arrivals,
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("steps"), st.integers(1, 20)),
        st.tuples(st.just("give up"), st.just(0)),
        st.tuples(st.just("preempt"), st.integers(0, 4)),
        st.tuples(st.just("compiled"), st.integers(0, 4)),
    ),
    max_size=25,
)
limits = st.builds(
    Limits,
    sequences=st.integers(1, 5),
    chunk_tokens=st.sampled_from([1, 64, 128, 200, 512]),
    length=st.just(1000),
    truncation=st.sampled_from(["off", "compact"]),
    keep_tokens=st.just(140),
    prefix_caching=st.booleans(),
)


class Traffic:
    """A world in which sequences come and go. wanted: tokens that each is to generate. late: those that had to wait for
    a grammar, while later ones may have taken the room.
    """

    def __init__(self, limits: Limits, blocks: int, slots: int) -> None:
        self.world = World(blocks=9 + blocks, slots=limits.sequences + 2 + slots, limits=limits)
        self.wanted: dict[Sequence, int] = {}
        self.late: set[Sequence] = set()

    def arrive(self, tokens: list[int], wanted: int, completions: int, compiling: bool) -> None:
        leader = None
        for _ in range(completions):
            sequence = self.world.arrive(tokens, leader=leader, compiling=compiling)
            leader = leader or sequence
            self.late |= {sequence} if compiling else set()
            self.wanted[sequence] = min(wanted, 1000 - len(tokens))

    def compiled(self, which: int) -> None:
        """The grammar of a request that waits for one is there; so are all of its completions' then."""
        found = [one for one in self.world.scheduler.waiting if one.status is Status.COMPILING]
        if found:
            first = found[which % len(found)]
            for one in found:
                if one in (first, first.leader) or (one.leader and one.leader in (first, first.leader)):
                    self.world.scheduler.release(one)

    def cancel(self, which: int) -> None:
        alive = [one for one in self.wanted if one.status is not Status.FINISHED]
        if alive:
            self.world.scheduler.remove(alive[which % len(alive)])

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.check(self.world.step())

    def preempt(self, which: int) -> None:
        running = self.world.scheduler.running
        if running:
            self.world.scheduler.preempt(running[which % len(running)])

    def give_up(self, _: int) -> None:
        step = self.world.scheduler.schedule()
        if step:
            for chunk in step.chunks:  # half of the work is done, and all states are spoilt
                self.world.device.states[chunk.sequence.slot] = -1
                self.world.device.rows[chunk.sequence.blocks[chunk.start // 128], chunk.start % 128] = -1
            self.world.scheduler.abandon(step)

    def check(self, step: Step | None) -> None:
        """What holds after every step."""
        scheduler, limits = self.world.scheduler, self.world.limits
        for one in [one for one in scheduler.running if one.generated >= self.wanted[one]]:
            scheduler.remove(one)
        running, waiting = scheduler.running, scheduler.waiting
        assert len(running) <= limits.sequences
        assert [one.arrival for one in running] == sorted(one.arrival for one in running)
        assert [one.arrival for one in waiting] == sorted(one.arrival for one in waiting)
        assert all(not one.blocks and not one.slot for one in self.wanted if one not in running)
        assert all(one.status is not Status.COMPILING for one in running)
        places = {block for one in running for block in one.blocks}
        assert self.world.scheduler.held == (len(places), len(running))
        if step is None:
            assert not running and all(one.status is Status.COMPILING for one in waiting)
            return
        assert step.chunks and sum(chunk.count for chunk in step.prefill) <= limits.chunk_tokens
        first = min(chunk.sequence.arrival for chunk in step.chunks)
        alive = [one.arrival for one in (*running, *waiting) if one in running or one not in self.late]
        assert not alive or first <= min(alive), "the first come got nothing"


@settings(max_examples=120)
@given(limits, st.integers(0, 12), st.integers(0, 4), events)
def test_any_traffic_ends_with_the_right_tokens_and_nothing_held(
    limits: Limits, blocks: int, slots: int, events: list[tuple[object, ...]]
) -> None:
    traffic = Traffic(limits, blocks, slots)
    for kind, *values in events:
        getattr(traffic, str(kind).replace(" ", "_"))(*values)
    while any(one.status is Status.COMPILING for one in traffic.world.scheduler.waiting):
        traffic.compiled(0)
    # No starvation: everybody is done in the end, however small the memory is.
    for count in itertools.count():
        assert count < 200_000, "somebody never gets done"
        step = traffic.world.step()
        traffic.check(step)
        if step is None:
            break
    assert traffic.world.scheduler.held == (0, 0)
    for one in traffic.wanted:
        assert one.status is Status.FINISHED
        for position in range(one.prompt_length, len(one.tokens)):
            assert one.tokens[position] == drawn(one.tokens[:position])
