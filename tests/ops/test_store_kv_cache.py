"""`store_kv_cache` (kernel_spec A.15)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.formats import (
    FORMATS,
    FP4_INDEX_KV_FORMAT,
    FP8_FLOAT32_SF_INDEX_KV_FORMAT,
    MXFP8_INDEX_KV_FORMAT,
    V41_FORMAT,
    KVCacheFormat,
    alloc_kv_cache,
    bf16_format,
)
from deepinfer.ops.store_kv_cache import store_kv_cache
from tests.ops.narrow import quantise
from tests.ops.paged_far_interpreted import faults
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("store_kv_cache")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    layout, _ = call.parameters
    kv, value, sf, slots = (one.value.clone() for one in call.arguments)
    size = value.shape[1]
    sf = value if layout.quantized_dtype is None else sf
    for row, slot in zip(kv.float().tolist(), slots.tolist(), strict=True):
        if not 0 <= slot < value.shape[0] * size:
            continue
        at = (slot // size, slot % size)
        if layout.quantized_dtype is None:
            value[at] = torch.tensor(row)
            continue
        codes, scales = quantise(row, layout.quantized_dtype, layout.elements_per_sf, layout.sf_format)
        value.view(torch.uint8)[at] = torch.tensor(codes, dtype=torch.uint8)
        if layout.sf_format == "fp32":
            sf[at] = torch.tensor(scales)
        else:
            sf.view(torch.uint8)[at] = torch.tensor(scales, dtype=torch.uint8)
    outcome = run(case.factory, call, "reference", "cpu")
    for name, expected in (("kv_cache_value", value), ("kv_cache_sf", sf)):
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[expected.element_size()]
        got = outcome.results[name]
        assert (got.view(width).eq(expected.view(width)) | got.float().isnan() & expected.float().isnan()).all(), name


@small_cases("store_kv_cache")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("store_kv_cache")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


@pytest.mark.parametrize("layout", FORMATS, ids=lambda layout: layout.note)
def test_only_the_slots_bytes_change(layout: KVCacheFormat) -> None:
    with using("reference"):
        pool = torch.randint(0, 256, (3 * layout.block_stride(4) + 96,), dtype=torch.uint8)
        width, stride = layout.bytes_per_token, layout.block_stride(4) + 32
        cache = pool.as_strided((3, 4, 1, width), (stride, width, width, 1), 32)
        before = pool.clone()
        kv = torch.randn(3, layout.elements, dtype=torch.bfloat16)
        store_kv_cache(kv, cache, torch.tensor([5, -1, -1], dtype=torch.int32), layout=layout)
        changed = (pool != before).nonzero().flatten().tolist()
        start = 32 + stride
        values, scales = range(start + width, start + 2 * width), range(0)
        if not layout.token_interleaved:
            values = range(start + layout.value_bytes, start + 2 * layout.value_bytes)
            first = start + 4 * layout.value_bytes + layout.sf_bytes
            scales = range(first, first + layout.sf_bytes)
        assert changed and all(byte in values or byte in scales for byte in changed)
        store_kv_cache(kv[:0], cache, torch.empty(0, dtype=torch.int32), layout=layout)
        store_kv_cache(kv.view(3, 2, -1), cache, torch.tensor([5, -1, 12], dtype=torch.int32), layout=layout)
        assert (pool != before).nonzero().flatten().tolist() == changed


def test_updates_replace_each_other() -> None:
    with using("reference"):
        cache = alloc_kv_cache(V41_FORMAT, 2, 8)
        cache.fill_(1)
        slots = torch.tensor([3, -1, 14], dtype=torch.int32)
        kv = torch.randn(3, 512, dtype=torch.bfloat16)
        for rows in (kv, kv * 100, kv * 0):
            store_kv_cache(rows, cache, slots)
        assert not cache[0, 3, 0, :512].bitwise_and(0x7F).any() and cache[0, 3, 0, 512:].eq(105).all()
        assert cache[1, 6, 0, 512:].eq(105).all() and cache[0, 4].eq(1).all()


@settings(max_examples=40)
@given(blocks=st.integers(1, 4), size=st.integers(1, 9), slots=st.lists(st.integers(-5, 40), unique=True, max_size=12))
def test_a_slot_is_a_token_of_the_blocks_in_order(blocks: int, size: int, slots: list[int]) -> None:
    cache = torch.full((blocks, size, 1, 16), -1.0, dtype=torch.bfloat16)
    kv = torch.arange(len(slots)).bfloat16()[:, None].expand(-1, 16).contiguous()
    with using("reference"):
        store_kv_cache(kv, cache, torch.tensor(slots, dtype=torch.int32))
    expected = [-1.0] * (blocks * size)
    for row, slot in enumerate(slots):
        if 0 <= slot < blocks * size:
            expected[slot] = float(row)
    assert cache[..., 0, 0].flatten().tolist() == expected


def test_a_bfloat16_cache_says_its_own_format() -> None:
    with using("reference"):
        cache = torch.zeros(2, 4, 2, 128, dtype=torch.bfloat16)
        kv = torch.randn(2, 2, 128, dtype=torch.bfloat16)
        store_kv_cache(kv, cache, torch.tensor([1, 6], dtype=torch.int32))
        assert cache[0, 1].equal(kv[0]) and cache[1, 2].equal(kv[1]) and not cache[0, 0].any()


def _arguments(**changed: object) -> dict[str, object]:
    given: dict[str, object] = {
        "kv": torch.zeros(2, 512, dtype=torch.bfloat16),
        "kv_cache": torch.zeros(2, 4, 1, 528, dtype=torch.uint8),
        "slot_mapping": torch.zeros(2, dtype=torch.int32),
    }
    return {**given, **changed}


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"kv": torch.zeros(2, 512)}, TypeError, "store_kv_cache: kv must be bfloat16, not float32"),
        ({"kv": torch.zeros(2, 128, dtype=torch.bfloat16)}, ValueError, "kv must have 512 values a row"),
        ({"kv": torch.zeros(512, 2, dtype=torch.bfloat16).T}, ValueError, "kv must have contiguous rows"),
        ({"kv": torch.zeros(2, 512, dtype=torch.bfloat16, device="meta")}, ValueError, "must be on one device"),
        ({"slot_mapping": torch.zeros(2)}, TypeError, "slot_mapping must be int32"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int32)}, ValueError, "slot_mapping has the shape"),
        ({"kv_cache": torch.zeros(2, 4, 1, 584, dtype=torch.uint8)}, ValueError, r"bytes one of 68, 132, 288, 528"),
        ({"kv_cache": torch.zeros(2, 4, 1, 592, dtype=torch.uint8)}, ValueError, r"\[2, 4, 1, 592\]"),
        ({"kv_cache": torch.zeros(2, 4, 1, 132, dtype=torch.uint8)}, ValueError, "give sf_format or layout"),
        ({"kv_cache": torch.zeros(2, 4, 528, dtype=torch.uint8)}, ValueError, "kv_cache must have the shape"),
        ({"kv_cache": torch.zeros(2, 4, 1, 528)}, TypeError, "kv_cache must be uint8 or bfloat16"),
        ({"kv_cache": torch.zeros(2, 8, 1, 528, dtype=torch.uint8)[:, ::2]}, ValueError, "tokens must be dense"),
        ({"layout": MXFP8_INDEX_KV_FORMAT}, ValueError, "does not fit the layout 'index, MXFP8'"),
    ],
)
def test_refused(changed: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        store_kv_cache(**_arguments(**changed))  # type: ignore[arg-type]


def test_formats_of_the_specification() -> None:
    assert [one.bytes_per_token for one in FORMATS] == [528, 288, 68, 132, 132]
    assert [one.stride_alignment for one in FORMATS] == [16, 32, 32, 32, 32]
    assert V41_FORMAT.block_stride(133) == 70752 and FP4_INDEX_KV_FORMAT.block_stride(3) == 224
    meta = alloc_kv_cache(V41_FORMAT, 3, 64, "meta")
    assert meta.shape == (3, 64, 1, 528) and meta.stride() == (64 * 528, 528, 528, 1)
    assert bf16_format(256).bytes_per_token == 512


@pytest.mark.parametrize(
    "fields",
    [
        ("e5m2", 128, 32, 0, False, "ue8m0", "", False),
        ("e4m3", 128, 32, 64, False, "ue8m0", "", False),
        ("e4m3", 128, 32, 0, True, "ue8m0", "", False),
        ("e4m3", 128, 0, 0, False, "ue8m0", "", False),
        (None, 128, 32, 0, False, None, "", True),
    ],
)
def test_formats_that_contradict_themselves(fields: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="contradict each other"):
        KVCacheFormat(*fields)  # type: ignore[arg-type]


def test_float_scales_need_an_aligned_cache() -> None:
    cache = torch.zeros(2 * 4 * 132 + 2, dtype=torch.uint8)[2:].view(2, 4, 1, 132)
    kv, slots = torch.zeros(2, 128, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32)
    with using("reference"), pytest.raises(ValueError, match="do not fit"):
        store_kv_cache(kv, cache, slots, layout=FP8_FLOAT32_SF_INDEX_KV_FORMAT)


def test_slots_beyond_two_gigabytes_in_the_interpreter() -> None:
    """Slot 4,100,000 of a pool of rows of 528 bytes, stored, loaded and stored by the fused transform."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ops.paged_far_interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.gpu
def test_slots_beyond_two_gigabytes_on_a_gpu() -> None:
    assert faults("cuda") == []
