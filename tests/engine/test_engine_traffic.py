"""Mixed requests with cancels, preemptions and grammars: nothing leaks, and everybody gets what he would get alone."""

from __future__ import annotations

import importlib.util
import random
import warnings

import pytest

from deepinfer.engine.core import Engine
from deepinfer.engine.outputs import RequestOutput
from deepinfer.engine.sequence import Request
from deepinfer.ops import dispatch
from deepinfer.sampling.params import SamplingParams, Structure
from deepinfer.structured_output import Compilation
from tests.engine.held_grammars import settle
from tests.engine.tiny_engine import answers, ask, engine, loaded, prompt, quiet_cpu

STRUCTURES: tuple[Structure, ...] = (
    Structure("regex", "[a-f]{2,9}[0-9]*"),
    Structure("choice", ("yes", "no", "neither of the two")),
    Structure("json", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    Structure("ebnf", 'root ::= "x" root | "y"'),
)


cpu = pytest.fixture(autouse=True, scope="module")(quiet_cpu)


def requests(count: int, longest: int, chance: random.Random) -> list[Request]:
    """Prompts that begin alike or not, short and up to `longest`, some of them about to need another block, with all
    kinds of sampling.
    """
    structures = STRUCTURES
    if importlib.util.find_spec("xgrammar") is None:
        warnings.warn("xgrammar is absent: no grammars among the requests", stacklevel=1)
        structures = ()
    beginnings = [prompt(longest, seed) for seed in (1, 2)]
    found = []
    for index in range(count):
        begin = chance.choice(beginnings)[: chance.choice((0, 5, 128, longest // 2))]
        length = chance.choice(
            (chance.randint(1, longest), 128 * chance.randint(1, longest // 128) - chance.randint(1, 4))
        )
        tokens = begin[: length - 1] + prompt(max(length - len(begin), 1), 100 + index)
        params = SamplingParams(
            temperature=chance.choice((0.0, 0.7, 1.5)),
            top_p=chance.choice((1.0, 0.8)),
            top_k=chance.choice((-1, 20)),
            seed=chance.randint(-(2**63), 2**63 - 1),
            n=chance.choice((1, 1, 1, 2)),
            max_tokens=chance.randint(1, longest // 10),
            min_tokens=chance.choice((0, 1)),
            stop=chance.choice(((), ("e",), ("the", "th "))),
            ignore_eos=chance.random() < 0.5,
            logprobs=chance.choice((None, 0, 3)),
            prompt_logprobs=chance.choice((None, None, None, 1)),
            structure=chance.choice((None, None, *structures)),
        )
        found.append(Request(tokens, params))
    return found


class Traffic:
    """Requests that come over time to one engine, some of which are cancelled on their way, and some preempted, more
    often than a lack of memory would do it.
    """

    def __init__(self, running: Engine, coming: list[Request], chance: random.Random) -> None:
        self.engine, self.coming, self.chance = running, coming, chance
        self.told: dict[str, RequestOutput] = {}
        self.grammars: set[Compilation] = set()
        self.cancelled: set[str] = set()
        self.preemptions = 0

    def run(self) -> None:
        """Until everybody is done; what is held must be held by somebody."""
        coming = list(self.coming)
        while coming or self.engine.has_work:
            for _ in range(min(len(coming), self.chance.randint(0, 3))):
                name = self.engine.add(coming.pop(0))
                if (grammar := self.engine._live[name].compilation) is not None:
                    self.grammars.add(grammar)
            if self.chance.random() < 0.05:
                self.cancel()
            running = self.engine._scheduler.running
            if running and self.chance.random() < 0.15:
                self.engine._scheduler.preempt(self.chance.choice(running))
                self.preemptions += 1
            for output in self.engine.step():
                self.told[output.request_id] = output
            running = self.engine._scheduler.running
            assert self.engine.held == (len({block for one in running for block in one.blocks}), len(running))
        assert self.engine.held == (0, 0) and not self.engine._compiling
        assert not any(one.users for one in self.grammars)
        self.engine.close()
        settle()

    def cancel(self) -> None:
        """Somebody, who may be waiting, in the prompt or past it."""
        alive = [name for name in self.engine._live if name not in self.cancelled]
        if alive:
            name = self.chance.choice(alive)
            self.cancelled.add(name)
            assert self.engine.cancel(name)


@pytest.mark.parametrize(
    ("count", "longest", "sequences", "blocks"),
    [
        (8, 140, 4, 4),
        pytest.param(30, 300, 5, 8, marks=pytest.mark.slow),
        pytest.param(200, 400, 24, 40, marks=pytest.mark.gpu),
    ],
)
def test_everybody_gets_what_he_would_get_alone(
    count: int, longest: int, sequences: int, blocks: int, request: pytest.FixtureRequest
) -> None:
    on_gpu = request.node.get_closest_marker("gpu") is not None
    with dispatch.using(dispatch.Settings("triton", strict=True) if on_gpu else "reference"):
        model = loaded(device="cuda" if on_gpu else "cpu")
        chance = random.Random(count)
        coming = requests(count, longest, chance)
        running = engine(model, max_num_seqs=sequences, chunk_tokens=200, blocks=blocks)
        compare(running, engine(model, chunk_tokens=1024, prefix_caching=False), coming, chance)


def compare(running: Engine, alone: Engine, coming: list[Request], chance: random.Random) -> None:
    """Answers in traffic, and of each request alone; those that were cancelled as far as they got."""
    traffic = Traffic(running, coming, chance)
    traffic.run()
    ended = {one.finish_reason for told in traffic.told.values() for one in told.outputs}
    assert ended == {"stop", "length", "cancelled"}, "the traffic was too light to show anything"
    assert traffic.preemptions, "the traffic was too light to show anything"
    for one in coming:
        told = traffic.told[one.request_id]
        assert told.finished
        expected = ask(list(one.prompt), one.params, alone)
        if one.request_id not in traffic.cancelled:
            assert answers(told) == answers(expected)
            continue
        for mine, whole in zip(told.outputs, expected.outputs, strict=True):
            assert mine.token_ids == whole.token_ids[: len(mine.token_ids)]
            assert mine.finish_reason == "cancelled" or mine == whole
