"""Blocks and slots are laid out as the format says: the real model's totals, and what holds for any model."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.cache.layout import BLOCK_TOKENS, BlockLayout, SlotLayout, blocks_of
from deepinfer.cache.pool import blocks_that_fit
from deepinfer.config import ModelConfig, parse_config
from deepinfer.config.constraints import problems_of
from deepinfer.errors import DeepInferError
from deepinfer.loading.tiny import tiny_config
from tests.engine.real_config import real_config

REAL = parse_config(real_config())
TINY = parse_config(tiny_config())


def test_a_block_of_the_real_model() -> None:
    layout = BlockLayout.of(REAL)
    assert layout.block_bytes == 114_048
    assert {layer: (one.offset, one.entries, one.bytes) for layer, one in layout.index_keys.items()} == {
        2: (0, 64, 64 * 68),
        8: (22_784, 64, 64 * 68),
        14: (45_568, 64, 64 * 68),
        20: (68_352, 128, 128 * 68),
    }
    assert {layer: (one.offset, one.entries, one.bytes) for layer, one in layout.main.items()} == {
        2: (4_352, 64, 64 * 288),
        8: (27_136, 64, 64 * 288),
        14: (49_920, 64, 64 * 288),
        20: (77_056, 128, 128 * 288),
    }


def test_a_slot_of_the_real_model() -> None:
    layout = SlotLayout.of(REAL)
    assert layout.slot_bytes == 3_128_928
    assert (layout.ring_rows, layout.ring_row_bytes) == (134, 528)
    assert layout.rings == {layer: layer * 70_752 for layer in range(43)}
    assert layout.stored_bytes == 20 * 70_752
    assert (layout.compressor_rows, layout.compressor_row_bytes) == (7, 2 * 512 * 4)
    assert layout.compressors == {2: 43 * 70_752, 8: 43 * 70_752 + 28_672, 14: 43 * 70_752 + 2 * 28_672}


def test_entries_in_fp8_take_528_bytes() -> None:
    config = dataclasses.replace(REAL, attention=dataclasses.replace(REAL.attention, fp4_cache=False))
    layout = BlockLayout.of(config)
    sections = 3 * (64 * 68 + 64 * 528) + 128 * 68 + 128 * 528
    assert layout.main[20].bytes == 128 * 528
    assert layout.block_bytes == math.ceil(sections / math.lcm(128, 528)) * math.lcm(128, 528)


def test_more_backtracking_takes_more_rows_of_every_ring() -> None:
    usual, longer = SlotLayout.of(REAL), SlotLayout.of(REAL, backtracking=9)
    assert (longer.ring_rows, longer.compressor_rows) == (usual.ring_rows + 3, usual.compressor_rows + 3)
    with pytest.raises(ValueError, match="backtracking must be at least 1"):
        SlotLayout.of(REAL, backtracking=0)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (127, 1), (128, 1), (129, 2), (1_048_576, 8192)])
def test_blocks_of_a_sequence(tokens: int, blocks: int) -> None:
    assert blocks_of(tokens) == blocks


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Models of any arrangement of layers that is allowed: SWA layers, then ratio 2, then ratio 1."""
    swa, paired, single, draft = (draw(st.integers(*bounds)) for bounds in ((0, 3), (0, 7), (1, 7), (0, 3)))
    layers = swa + paired + single
    first = swa + paired
    starts = {first} | ({swa} if paired else set())
    sources = starts | draw(st.sets(st.integers(swa, layers - 1)))
    keys = starts | draw(st.sets(st.sampled_from(sorted(sources))))
    config = dataclasses.replace(
        TINY,
        layers=layers,
        ratios=(0,) * swa + (2,) * paired + (1,) * single + (0,) * draft,
        kv_sources=tuple(sorted(keys)),
        index_k_sources=tuple(sorted(keys)),
        index_sources=tuple(sorted(sources)),
        attention=dataclasses.replace(
            TINY.attention,
            head_dim=draw(st.sampled_from([64, 96, 512])),
            window=draw(st.integers(1, 200)),
            fp4_cache=draw(st.booleans()),
        ),
        indexer=dataclasses.replace(TINY.indexer, head_dim=draw(st.sampled_from([64, 128])), candidate_source=None),
        engram=None,
        draft=dataclasses.replace(TINY.draft, layers=draft, target_layers=(layers - 1,))
        if draft and TINY.draft
        else None,
    )
    assert not problems_of(config), problems_of(config)
    return config


@given(configs(), st.integers(1, 40))
def test_every_byte_has_one_owner_and_every_part_its_alignment(config: ModelConfig, backtracking: int) -> None:
    block, slot = BlockLayout.of(config), SlotLayout.of(config, backtracking)
    order = [
        part[layer]
        for layer in sorted({*block.index_keys, *block.main})
        for part in (block.index_keys, block.main)
        if layer in part
    ]
    ends = [0] + [-(-(one.offset + one.bytes) // 32) * 32 for one in order]
    assert [one.offset for one in order] == ends[:-1], "layer by layer, index keys first, padded to 32 bytes"
    unit = math.lcm(128, next(iter(block.main.values())).form.bytes_per_token)
    assert block.block_bytes % unit == 0 and 0 <= block.block_bytes - ends[-1] < unit
    assert set(block.main) == set(config.kv_sources) and set(block.index_keys) == set(config.index_k_sources)
    assert all(one.entries * config.ratios[layer] == BLOCK_TOKENS for layer, one in block.main.items())

    ring = -(-slot.ring_rows * slot.ring_row_bytes // 32) * 32
    parts = [(start, ring) for start in slot.rings.values()]
    parts += [(start, slot.compressor_rows * slot.compressor_row_bytes) for start in slot.compressors.values()]
    ends = [0] + [start + size for start, size in parts]
    assert [start for start, _ in parts] == ends[:-1], "rings in layer order, then the compressors' states"
    assert set(slot.rings) == set(range(len(config.ratios))), "draft layers too"
    assert set(slot.compressors) == {layer for layer in config.kv_sources if config.ratios[layer] == 2}
    assert slot.stored_bytes == slot.rings[config.first_consumer]
    unit = math.lcm(32, slot.ring_row_bytes)
    assert slot.slot_bytes % unit == 0 and 0 <= slot.slot_bytes - ends[-1] < unit


@given(configs(), st.integers(2, 300), st.integers(0, 2**40), st.integers(1, 12))
def test_as_many_blocks_as_fit_and_not_one_more(config: ModelConfig, slots: int, size: int, backtracking: int) -> None:
    block_bytes = BlockLayout.of(config).block_bytes
    beside = slots * SlotLayout.of(config, backtracking).slot_bytes
    if size < beside + 2 * block_bytes:
        with pytest.raises(DeepInferError, match="no room for the caches"):
            blocks_that_fit(config, size, slots, backtracking=backtracking)
    else:
        blocks = blocks_that_fit(config, size, slots, backtracking=backtracking)
        assert beside + blocks * block_bytes <= size < beside + (blocks + 1) * block_bytes


def test_what_the_real_model_holds_on_a_large_gpu() -> None:
    """20 GB beside the slots of 256 sequences: blocks for 22.4 million tokens."""
    slots = 257
    assert blocks_that_fit(REAL, 20 * 10**9 + slots * 3_128_928, slots) == 20 * 10**9 // 114_048 == 175_364


def test_too_little_memory_says_how_much_would_do() -> None:
    needed = 4 * 3_128_928 + 2 * 114_048
    assert blocks_that_fit(REAL, needed, 4) == 2
    with pytest.raises(DeepInferError) as caught:
        blocks_that_fit(REAL, needed - 1, 4)
    assert "4 state slots with two blocks take 12 MiB" in str(caught.value)
    assert "next step" in str(caught.value) and caught.value.exit_code == 4
    with pytest.raises(ValueError, match="slots must be at least 2"):
        blocks_that_fit(REAL, needed, 1)
