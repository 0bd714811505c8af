"""A row's logits have the same bits however the work is divided (model_spec 3.8, 6.9, 10 d and e).

The kernels take sums in an order that depends on the row alone, so this holds without a switch.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from deepinfer.cache.pool import Caches
from deepinfer.model.batch import RowSpec
from deepinfer.model.model import Model
from tests.engine.exactness_subject import engine
from tests.engine.model_runs import config, prompt, single_thread

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
on_each_device = pytest.mark.parametrize("device", DEVICES)
KEEP = 40


def _memory(device: str, sequences: int, blocks: int) -> Caches:
    found = Caches.allocate(config(), device, blocks=sequences * blocks + 1, slots=sequences + 1)
    found.blocks_buffer.fill_(0xFF)
    found.slots_buffer.fill_(0xFF)
    return found


def _alone(own: Model, tokens: Sequence[int], cuts: Sequence[int], decoded: int = 0) -> torch.Tensor:
    """The last row's logits; prefill ends at each of `cuts`, and `decoded` tokens follow one by one."""
    blocks = -(-len(tokens) // 128)
    memory = _memory(own.device.type, 1, blocks)
    ends = [*cuts, *range(cuts[-1] + 1, cuts[-1] + decoded + 1)]
    logits = torch.empty(0)
    for at, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        row = RowSpec(tokens, start, end - start, 1, range(1, blocks + 1), cuts[-1])
        logits = own.forward(own.batch([row], decode=at >= len(cuts)), memory)
    assert ends[-1] == len(tokens)
    return logits[-1].cpu()


@on_each_device
@pytest.mark.parametrize("length", [2, 33, 65, 128, 130, 181])
def test_prefill_equals_prefill_of_one_less_and_a_step(device: str, length: int) -> None:
    own, tokens = engine(device), prompt(length)
    assert _alone(own, tokens, [length]).equal(_alone(own, tokens, [length - 1], 1))


@on_each_device
@pytest.mark.parametrize("cuts", [(90, 180), (1, 128, 129, 180), (63, 127, 180)])
def test_chunks_equal_the_whole(device: str, cuts: tuple[int, ...]) -> None:
    own, tokens = engine(device), prompt(180)
    assert _alone(own, tokens, cuts).equal(_alone(own, tokens, [180]))


@on_each_device
@pytest.mark.parametrize("cuts", [(180,), (139, 150, 180)])
def test_compact_equals_mask(device: str, cuts: tuple[int, ...]) -> None:
    tokens = prompt(183)
    mask = _alone(engine(device, truncation="mask", keep_tokens=KEEP), tokens, [180], 3)
    assert _alone(engine(device, truncation="compact", keep_tokens=KEEP), tokens, cuts, 3).equal(mask)
    assert not _alone(engine(device), tokens, [180], 3).equal(mask)


@on_each_device
def test_alone_equals_in_a_batch_of_64(device: str) -> None:
    """Prompts of 1 to 37 tokens in one prefill, and then three steps together."""
    own, sequences = engine(device), 64
    stories = [prompt(1 + 5 * at % 37 + 3, seed=at) for at in range(sequences)]
    memory = _memory(device, sequences, 1)

    def rows(start: int, count: int) -> list[RowSpec]:
        return [
            RowSpec(tokens, start and len(tokens) - 4 + start, count or len(tokens) - 3, at + 1, [at + 1])
            for at, tokens in enumerate(stories)
        ]

    own.forward(own.batch(rows(0, 0), decode=False), memory)
    for step in (1, 2, 3):
        together = own.forward(own.batch(rows(step, 1), decode=True), memory).cpu()
    for at in (0, 1, 22, 36, 63):
        assert together[at].equal(_alone(own, stories[at], [len(stories[at]) - 3], 3)), at
