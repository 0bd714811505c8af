"""The model's forward on a GPU, with Triton's kernels: near the reference on a CPU, the same bits in other pieces."""

from __future__ import annotations

import functools

import pytest
import torch

from deepinfer.cache.pool import Caches
from deepinfer.model.batch import RowSpec
from deepinfer.model.model import Forced, Model, Trace, Truncation
from deepinfer.model.weights import gather_weights
from deepinfer.ops import dispatch
from tests.engine.model_runs import BLOCKS, FEW_CANDIDATES, Story, config, lookup, prompt, tensors
from tests.engine.model_runs import caches as caches_on_cpu
from tests.engine.model_runs import model as model_on_cpu

pytestmark = pytest.mark.gpu


@functools.cache
def model(truncation: Truncation = "off") -> Model:
    own = config(FEW_CANDIDATES)
    weights = gather_weights(own, tensors().__getitem__, "cuda")
    return Model(own, weights, lookup=lookup(), truncation=truncation, keep_tokens=40)


def caches() -> Caches:
    found = Caches.allocate(config(), "cuda", blocks=BLOCKS, slots=12)
    found.blocks_buffer.fill_(0xFF)
    found.slots_buffer.fill_(0xFF)
    return found


def forward(own: Model, memory: Caches, rows: list[RowSpec], *, decode: bool = False) -> torch.Tensor:
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        return own.forward(own.batch(rows, decode=decode), memory)


def run(
    tokens: list[int], cuts: list[int], decoded: tuple[int, ...] = (), truncation: Truncation = "off"
) -> torch.Tensor:
    own, memory, story = model(truncation), caches(), Story(tokens)
    story.total = cuts[-1]
    logits = torch.empty(0)
    for cut in cuts:
        logits = forward(own, memory, [story.rows(cut - story.done)])
    for count in decoded:
        logits = forward(own, memory, [story.rows(count)], decode=True)
    return logits[-1]


def test_near_the_reference_with_its_choices() -> None:
    tokens, expected = prompt(150), Trace()
    reference = model_on_cpu(candidates=FEW_CANDIDATES)
    with dispatch.using("reference"):
        wanted = reference.forward(
            reference.batch([Story(tokens).rows(150, "all")], decode=False), caches_on_cpu(), trace=expected
        )
    own, trace = model(), Trace()
    forced = Forced(
        {layer: one.cuda() for layer, one in expected.routing.items()},
        {layer: one.cuda() for layer, one in expected.entries.items()},
    )
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        batch = own.batch([Story(tokens).rows(150, "all")], decode=False)
        found = own.forward(batch, caches(), forced=forced, trace=trace)
    for layer, hidden in expected.hidden.items():
        error = float((trace.hidden[layer].cpu().double() - hidden.double()).norm() / hidden.double().norm())
        print(f"layer {layer}: {error:.1e}")
        assert error <= 5e-3, layer
    assert float((found.cpu() - wanted).norm() / wanted.norm()) <= 5e-3


@pytest.mark.parametrize("length", [2, 33, 64, 129, 150, 700])
def test_a_prefill_equals_one_of_a_token_less_and_a_decode_step(length: int) -> None:
    tokens = prompt(length)
    assert run(tokens, [length]).equal(run(tokens, [length - 1], (1,)))


@pytest.mark.parametrize("cuts", [[1, 2, 3], [37, 75, 76], [127, 129, 138]])
def test_chunks_equal_the_whole_and_compact_equals_mask(cuts: list[int]) -> None:
    tokens = prompt(150)
    assert run(tokens, [*cuts, 150]).equal(run(tokens, [150]))
    mask = run(tokens, [150], truncation="mask")
    assert run(tokens, [150], truncation="compact").equal(mask)
    own, memory, story = model("compact"), caches(), Story(tokens, total=150)
    logits = [forward(own, memory, [story.rows(cut - story.done)]) for cut in (*cuts, 150)]
    assert logits[-1][-1].equal(mask)


def test_alone_and_in_a_batch_are_the_same() -> None:
    memory = caches()
    stories = [Story(prompt(length + 2, seed=length), index) for index, length in enumerate((180, 1, 40, 129, 77, 64))]
    forward(model(), memory, [story.rows(len(story.tokens) - 2, "none") for story in stories])
    for _ in range(2):
        logits = forward(model(), memory, [story.rows(1) for story in stories], decode=True)
    for story, found in zip(stories, logits, strict=True):
        assert found.equal(run(story.tokens, [len(story.tokens) - 2], (1, 1)))


def test_a_memory_on_the_host_gives_the_same_bits() -> None:
    own, tokens = config(FEW_CANDIDATES), prompt(60)
    weights = gather_weights(own, tensors().__getitem__, "cuda", engram_device="cpu")
    host = Model(own, weights, lookup=lookup())
    memory, story = caches(), Story(tokens)
    forward(host, memory, [story.rows(57)])
    assert forward(host, memory, [story.rows(3)], decode=True)[-1].equal(run(tokens, [57], (3,)))


def test_a_decode_step_can_be_captured_and_replayed() -> None:
    tokens = prompt(140)
    eager = run(tokens, [137], (1, 1, 1))
    own, memory, story = model(), caches(), Story(tokens)
    forward(own, memory, [story.rows(137)])
    forward(own, memory, [story.rows(1)], decode=True)
    first = own.batch([story.rows(1)], decode=True)
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        own.forward(first, memory)  # writes what the capture's replay writes again
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = own.forward(first, memory)
    graph.replay()
    following = own.batch([story.rows(1)], decode=True)
    for name in ("token_ids", "positions", "sequences", "ngrams", "slots", "block_tables", "key_lens", "row_ends"):
        getattr(first, name).copy_(getattr(following, name))
    graph.replay()
    assert logits[-1].equal(eager)
