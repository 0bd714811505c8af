"""The caches' memory: every layer's views lie where the layout says, and nothing writes beside them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from deepinfer.cache.pool import Caches
from deepinfer.config import parse_config
from deepinfer.errors import DeepInferError
from deepinfer.loading.tiny import tiny_config
from deepinfer.ops.compress import compress_and_update_state_decode
from deepinfer.ops.formats import FP4_INDEX_KV_FORMAT, V41_FORMAT, V41_FP4_FORMAT, infer_format, split_kv_cache
from deepinfer.ops.store_kv_cache import store_kv_cache

TINY = parse_config(tiny_config())
RING = 38
"""Rows of the tiny model's rings: its window of 32, and 6."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def caches(request: pytest.FixtureRequest) -> Caches:
    return Caches.allocate(TINY, request.param, blocks=5, slots=4)


def changed(before: torch.Tensor, after: torch.Tensor) -> list[tuple[int, int]]:
    """(row, byte) of what differs between two buffers."""
    return [(int(row), int(byte)) for row, byte in (before != after).nonzero()]


def test_shapes(caches: Caches) -> None:
    assert (caches.blocks, caches.slots, caches.ring_rows) == (5, 4, RING)
    assert caches.main(2).shape == (5, 64, 1, 288) and caches.main(6).shape == (5, 128, 1, 288)
    assert caches.index_keys(2).shape == (5, 64, 1, 68) and caches.index_keys(6).shape == (5, 128, 1, 68)
    assert caches.ring(0).shape == caches.ring(13).shape == (4, RING, 1, 528)
    assert caches.compressor(2).shape == (4, 7, 2, 512) and caches.compressor(2).dtype == torch.float32
    assert not caches.blocks_buffer.any() and not caches.slots_buffer.any()


def test_layers_that_share_a_source_share_its_memory(caches: Caches) -> None:
    for layer, origin in ((3, 2), (5, 4), (7, 6), (11, 6)):
        assert caches.main(layer).data_ptr() == caches.main(origin).data_ptr()
        assert caches.index_keys(layer).data_ptr() == caches.index_keys(origin).data_ptr()
    assert caches.compressor(5).data_ptr() == caches.compressor(4).data_ptr()
    assert len({caches.ring(layer).data_ptr() for layer in range(14)}) == 14, "rings are each layer's own"


def test_parts_of_a_block_and_of_a_slot_do_not_overlap(caches: Caches) -> None:
    """Each part adds 1 to its bytes: none is touched twice."""
    for layer in TINY.kv_sources:
        caches.main(layer).add_(1)
        caches.index_keys(layer).add_(1)
    for layer in range(14):
        caches.ring(layer).add_(1)
    assert caches.blocks_buffer.max() == 1 and caches.slots_buffer.max() == 1
    used = sum(
        one.bytes for part in (caches.block_layout.main, caches.block_layout.index_keys) for one in part.values()
    )
    assert (caches.blocks_buffer.sum(1) == used).all()
    assert (caches.slots_buffer.sum(1) == 14 * RING * 528).all()
    caches.slots_buffer.zero_()
    for layer in (2, 4):
        caches.compressor(layer).view(torch.int32).add_(1)
    assert caches.slots_buffer.max() == 1 and (caches.slots_buffer.sum(1) == 2 * 7 * 2 * 512).all()
    assert not caches.slots_buffer[:, : 14 * RING * 528].any()


def test_views_are_what_the_kernels_take(caches: Caches) -> None:
    assert infer_format(caches.main(3)) == V41_FP4_FORMAT
    assert infer_format(caches.index_keys(3)) == FP4_INDEX_KV_FORMAT
    assert infer_format(caches.ring(3)) == V41_FORMAT
    for view in (caches.main(3), caches.index_keys(11), caches.ring(13)):
        split_kv_cache(view, infer_format(view))


def test_an_entry_is_stored_at_its_place(caches: Caches) -> None:
    """Token 64 of block 3 at ratio 2 is entry 32; position 40 of slot 2 is ring row 40 % 38."""
    device = caches.blocks_buffer.device
    row = torch.randn(1, 512, device=device).to(torch.bfloat16)
    before = caches.blocks_buffer.clone()
    store_kv_cache(row, caches.main(5), torch.tensor([3 * 64 + 32], dtype=torch.int32, device=device))
    start = caches.block_layout.main[4].offset + 32 * 288
    found = changed(before, caches.blocks_buffer)
    assert found and all(block == 3 and start <= byte < start + 288 for block, byte in found)

    before = caches.slots_buffer.clone()
    store_kv_cache(row, caches.ring(13), torch.tensor([2 * RING + 40 % RING], dtype=torch.int32, device=device))
    start = 13 * RING * 528 + 2 * 528
    found = changed(before, caches.slots_buffer)
    assert found and all(slot == 2 and start <= byte < start + 528 for slot, byte in found)


def test_the_compressor_kernel_takes_the_state(caches: Caches) -> None:
    device = caches.slots_buffer.device
    score, latent = torch.randn(1, 512, device=device), torch.randn(1, 512, device=device)
    slot = torch.tensor([3], dtype=torch.int32, device=device)
    length = torch.tensor([10], dtype=torch.int32, device=device)
    compress_and_update_state_decode(score, latent, caches.compressor(3), slot, length, 6, 2)
    assert caches.compressor(2)[3, 9 % 7].equal(torch.cat([score, latent]))
    assert caches.compressor(2).count_nonzero() == 2 * 512


def test_layers_without_a_part_say_so(caches: Caches) -> None:
    for view in (caches.main, caches.index_keys):
        with pytest.raises(ValueError, match="layer 0 has the ratio 0, and so no part of the blocks"):
            view(0)
        with pytest.raises(ValueError, match="layer 12 has the ratio 0"):
            view(12)
    with pytest.raises(ValueError, match="layer 6 has the ratio 1, and so no compressor state"):
        caches.compressor(6)
    for view in (caches.main, caches.index_keys, caches.ring, caches.compressor):
        with pytest.raises(ValueError, match="layer 14 does not exist: layers are 0 to 13"):
            view(14)
        with pytest.raises(ValueError, match="layer -1 does not exist"):
            view(-1)


def test_slots_are_copied_whole_and_in_order(caches: Caches) -> None:
    caches.slots_buffer.random_()
    before = caches.slots_buffer.clone()
    caches.copy_slots([1, 2], [2, 3])
    assert caches.slots_buffer[2].equal(before[1]) and caches.slots_buffer[3].equal(before[1])
    assert caches.slots_buffer[:2].equal(before[:2])
    caches.copy_slots([3], [3])
    assert caches.slots_buffer[3].equal(before[1])
    caches.copy_slots([], [])


@pytest.mark.gpu
def test_a_copy_does_not_wait_for_the_device() -> None:
    caches = Caches.allocate(TINY, "cuda", blocks=2, slots=4)
    caches.copy_slots([1], [2])  # compiled here
    torch.cuda.set_sync_debug_mode("error")
    try:
        caches.copy_slots([1, 2], [2, 3])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_slots_that_cannot_be_copied(caches: Caches) -> None:
    before = caches.slots_buffer.random_().clone()
    for sources, targets in (([1], [0]), ([0], [1]), ([1, 4], [2, 3]), ([1, 2], [3, -1])):
        with pytest.raises(ValueError, match="slots are 1 to 3"):
            caches.copy_slots(sources, targets)
    with pytest.raises(ValueError, match="2 sources and 1 targets"):
        caches.copy_slots([1, 2], [3])
    assert caches.slots_buffer.equal(before), "nothing was copied"


@pytest.mark.parametrize(("blocks", "slots"), [(1, 4), (0, 4), (4, 1), (2**31, 2)])
def test_counts_that_cannot_be(blocks: int, slots: int) -> None:
    with pytest.raises(ValueError, match=r"must be 2 .* to 2147483647"):
        Caches.allocate(TINY, "cpu", blocks=blocks, slots=slots)


def test_memory_that_is_not_there_is_an_error_with_advice() -> None:
    with pytest.raises(DeepInferError, match="2000000000 blocks and 4 state slots take") as caught:
        Caches.allocate(TINY, "cpu", blocks=2_000_000_000, slots=4)
    assert "next step" in str(caught.value)


def test_entries_in_fp8() -> None:
    config = dataclasses.replace(TINY, attention=dataclasses.replace(TINY.attention, fp4_cache=False))
    caches = Caches.allocate(config, "cpu", blocks=2, slots=2)
    assert caches.main(2).shape == (2, 64, 1, 528) and infer_format(caches.main(2)) == V41_FORMAT
    split_kv_cache(caches.main(2), V41_FORMAT)


def test_caches_that_the_host_may_not_hold_are_refused_before_linux_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Caches.allocate(TINY, "cpu", blocks=5, slots=4)
    needed = made.blocks_buffer.nbytes + made.slots_buffer.nbytes
    monkeypatch.setattr("deepinfer.cache.pool.host_memory", lambda: needed)
    Caches.allocate(TINY, "cpu", blocks=5, slots=4)
    monkeypatch.setattr("deepinfer.cache.pool.host_memory", lambda: needed - 1)
    with pytest.raises(DeepInferError, match="the caches do not fit cpu: 5 blocks and 4 state slots take"):
        Caches.allocate(TINY, "cpu", blocks=5, slots=4)


def test_an_error_of_the_device_is_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "zeros", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        Caches.allocate(TINY, "cpu", blocks=2, slots=2)
