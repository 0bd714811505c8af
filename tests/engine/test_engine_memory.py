"""How an engine shares out memory, and what limits follow."""

from __future__ import annotations

import pytest
import torch

from deepinfer.cache.layout import BlockLayout, SlotLayout
from deepinfer.cache.pool import Caches
from deepinfer.engine.memory import HOST_BYTES, EngineOptions, allocate, work_bytes
from deepinfer.errors import DeepInferError
from deepinfer.model.model import Model
from deepinfer.ops import dispatch
from tests.engine.tiny_engine import ask, engine, greedy, loaded, prompt, quiet_cpu

cpu = pytest.fixture(autouse=True, scope="module")(quiet_cpu)


def test_without_options_sequences_may_be_as_long_as_the_model_allows() -> None:
    limits = allocate(loaded().model, EngineOptions()).limits
    assert (limits.length, limits.sequences, limits.chunk_tokens, limits.prefix_caching) == (4096, 256, 512, True)


def test_on_a_cpu_the_caches_take_a_gib_at_most() -> None:
    caches = allocate(loaded().model, EngineOptions(max_num_seqs=512)).caches
    assert HOST_BYTES * 0.99 < caches.blocks_buffer.nbytes + caches.slots_buffer.nbytes <= HOST_BYTES


def test_no_more_blocks_are_made_than_the_sequences_could_fill() -> None:
    memory = allocate(loaded().model, EngineOptions(max_num_seqs=2, max_model_len=300))
    assert memory.caches.blocks == 2 * 3 + 1
    assert memory.slots.get_num_free_blocks() == memory.caches.slots - 1 == 2 + 8


def test_blocks_that_are_fewer_than_the_model_allows_bound_the_length() -> None:
    assert allocate(loaded().model, EngineOptions(max_num_seqs=2, blocks=5)).limits.length == 4 * 128


def test_cached_results_depend_on_the_formats_and_on_truncation() -> None:
    options = EngineOptions(max_num_seqs=1, blocks=4)
    contexts = [allocate(loaded(truncation=one).model, options).context for one in ("off", "mask", "compact")]
    assert len({one.root() for one in contexts}) == 3
    config = loaded().config
    layouts = f"block={BlockLayout.of(config).block_bytes} slot={SlotLayout.of(config).slot_bytes}"
    assert contexts[0].cache_format.startswith(layouts)


def test_truncation_that_keeps_less_than_a_step_may_need_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(truncation="mask", keep_tokens=32)
    monkeypatch.setattr(Caches, "allocate", lambda *_, **__: pytest.fail("memory was taken before"))
    with pytest.raises(DeepInferError, match="keeps 32 tokens, and 38 are needed"):
        engine(model)


@pytest.fixture
def measurable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose memory is measured as a GPU's is; what comes of it means nothing."""
    for name in ("synchronize", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)


@pytest.mark.parametrize(
    ("chunk", "length", "sequences", "rows"),
    [(256, 4096, 8, (256,)), (256, 100, 8, (100, 100, 56)), (256, 100, 2, (100, 100)), (200, 100, 8, (100, 100))],
)
def test_the_work_that_is_measured_fills_a_step_with_as_many_prompts_as_that_takes(
    measurable: None, monkeypatch: pytest.MonkeyPatch, chunk: int, length: int, sequences: int, rows: tuple[int, ...]
) -> None:
    seen = []
    forward = Model.forward
    monkeypatch.setattr(Model, "forward", lambda own, batch, caches: seen.append(batch) or forward(own, batch, caches))
    model = loaded().model
    assert work_bytes(model, sequences, chunk, length) == 4 * sequences * model.config.vocab_size * 4
    assert [batch.counts for batch in seen] == [rows]


def test_a_device_without_memory_for_a_step_is_told(measurable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(Model, "forward", full)
    with pytest.raises(DeepInferError, match="no memory for a step of 40 rows"):
        work_bytes(loaded().model, 8, 40, 4096)


@pytest.mark.gpu
def test_a_gpu_is_filled_to_the_fraction_asked_for() -> None:
    with dispatch.using(dispatch.Settings("triton", strict=True)):
        model = loaded(device="cuda")
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        fraction = (total - free) / total + 0.05
        running = engine(model, blocks=None, max_num_seqs=2, memory_fraction=fraction)
        assert len(ask(prompt(300), greedy(3), running).outputs[0].token_ids) == 3
        with pytest.raises(DeepInferError, match="no room for the caches"):
            engine(model, blocks=None, memory_fraction=0.001)
