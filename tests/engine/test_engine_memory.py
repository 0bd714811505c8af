"""How an engine shares out memory, and what limits follow."""

from __future__ import annotations

import pytest
import torch

from deepinfer.cache.layout import BlockLayout, SlotLayout
from deepinfer.engine.memory import HOST_BYTES, EngineOptions, allocate
from deepinfer.errors import DeepInferError
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


def test_truncation_that_keeps_less_than_a_step_may_need_is_refused() -> None:
    with pytest.raises(DeepInferError, match="keeps 32 tokens, and 38 are needed"):
        engine(loaded(truncation="mask", keep_tokens=32))


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
