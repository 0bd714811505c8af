"""`load_paged_kv_cache` (kernel_spec A.15)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.formats import (
    FORMATS,
    FP8_FLOAT32_SF_INDEX_KV_FORMAT,
    V41_FORMAT,
    V41_FP4_FORMAT,
    KVCacheFormat,
    alloc_kv_cache,
)
from deepinfer.ops.load_paged_kv_cache import load_paged_kv_cache
from deepinfer.ops.store_kv_cache import store_kv_cache
from tests.ops.narrow import E2M1, E4M3, number
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def _token(layout: KVCacheFormat, values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A token's record -> bfloat16, number by number."""
    codes, steps = values.view(torch.uint8).tolist(), scales.view(torch.uint8).tolist()
    if layout.quantized_dtype == "e2m1":
        plain = [number(code >> shift & 15, E2M1) for code in codes for shift in (0, 4)]
    else:
        plain = [float("nan") if code & 0x7F == 0x7F else number(code, E4M3) for code in codes]
    size = [2.0 ** (step - 127) if layout.sf_format == "ue8m0" else _e4m3(step) for step in steps]
    row = [value * size[index // layout.elements_per_sf] for index, value in enumerate(plain)]
    return torch.tensor(row, dtype=torch.float64).bfloat16()


def _e4m3(code: int) -> float:
    return float("nan") if code & 0x7F == 0x7F else number(code, E4M3)


@small_cases("load_paged_kv_cache")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    layout, size = call.parameters
    segments, kv, kv_sf, value, sf = (one.value for one in call.arguments)
    kv, kv_sf = kv.clone(), kv_sf.clone()
    kv_sf = kv if layout.do_cast else kv_sf
    for block, begin, end, first in segments.tolist():
        for place in range(begin, end):
            row = first + place - begin
            if not 0 <= row < len(kv) or not 0 <= place < size:
                continue
            if not 0 <= block < len(value):
                kv.view(torch.uint8)[row] = 0
                if not layout.do_cast:
                    kv_sf[row] = 0
            elif layout.quantized_dtype is None:
                kv[row] = value[block, place]
            elif layout.do_cast:
                kv[row] = _token(layout, value[block, place], sf[block, place])
            else:
                kv.view(torch.uint8)[row] = value.view(torch.uint8)[block, place]
                kv_sf[row : row + 1] = sf[block, place].contiguous().view(kv_sf.dtype)
    outcome = run(case.factory, call, "reference", "cpu")
    assert outcome.results["kv"].float().equal(kv.float()) or torch.equal(
        outcome.results["kv"].float().nan_to_num(12345), kv.float().nan_to_num(12345)
    )
    if not layout.do_cast:
        assert outcome.results["kv_sf"].view(torch.int32).equal(kv_sf.view(torch.int32))


@small_cases("load_paged_kv_cache")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("load_paged_kv_cache")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


@pytest.mark.parametrize(("layout", "bound"), [(V41_FORMAT, 0.25), (V41_FP4_FORMAT, 0.5)], ids=["fp8", "fp4"])
def test_what_was_stored_comes_back(layout: KVCacheFormat, bound: float) -> None:
    with using("reference"):
        cache = alloc_kv_cache(layout, 4, 16)
        kv = torch.randn(40, 512, generator=torch.Generator().manual_seed(2)).bfloat16()
        store_kv_cache(kv, cache, torch.arange(8, 48, dtype=torch.int32))
        segments = torch.tensor([[0, 8, 16, 0], [1, 0, 16, 8], [2, 0, 16, 24], [-1, 0, 2, 40]], dtype=torch.int32)
        out = torch.full((44, 512), 3.0, dtype=torch.bfloat16)
        found = load_paged_kv_cache(cache, segments, 44, out)
        assert found.bf16_data is out and found.quantized_data is None and found.sf_data is None
        assert (out[:40].float() - kv.float()).abs().max() <= bound
        assert not out[40:42].any() and out[42:].eq(3).all()
        again = alloc_kv_cache(layout, 4, 16)
        store_kv_cache(out[:40], again, torch.arange(8, 48, dtype=torch.int32))
        same = load_paged_kv_cache(again, segments[:3], 40).bf16_data
        assert same is not None and same.equal(out[:40])


@pytest.mark.parametrize("layout", FORMATS[2:], ids=lambda layout: f"{layout.note}")
def test_index_formats_load_as_they_are_stored(layout: KVCacheFormat) -> None:
    with using("reference"):
        cache = torch.arange(2 * 8 * layout.bytes_per_token).to(torch.uint8).view(2, 8, 1, -1)
        values, scales, plain = load_paged_kv_cache(
            cache, torch.tensor([[1, 2, 5, 0]], dtype=torch.int32), 3, layout=layout
        )
        assert plain is None and values is not None and scales is not None and scales.shape == (3,)
        block, width = cache[1].flatten(), layout.value_bytes
        assert values.view(torch.uint8).flatten().equal(block[2 * width : 5 * width])
        first = 8 * width + 2 * layout.sf_bytes
        assert scales.view(torch.uint8).equal(block[first : first + 3 * layout.sf_bytes])
        assert values.dtype == (torch.int8 if width == 64 else torch.float8_e4m3fn)
        empty = load_paged_kv_cache(cache, torch.empty(0, 4, dtype=torch.int32), 0, layout=layout)
        assert empty.quantized_data is not None and empty.quantized_data.shape == (0, width)


MAIN = torch.zeros(2, 4, 1, 528, dtype=torch.uint8)
SEGMENT = torch.zeros(1, 4, dtype=torch.int32)
INDEX = torch.zeros(2, 4, 1, 132, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arguments", "named", "error", "text"),
    [
        ((MAIN, SEGMENT.long(), 1), {}, TypeError, "load_paged_kv_cache: load_segments must be int32, not int64"),
        ((MAIN, SEGMENT[:, :3], 1), {}, ValueError, "load_segments must have the shape"),
        ((MAIN, SEGMENT, -1), {}, ValueError, "total_k must be at least 0"),
        ((MAIN, SEGMENT, 1.0), {}, TypeError, "total_k must be an int"),
        ((MAIN, SEGMENT, 1, torch.zeros(1, 512)), {}, TypeError, "out must be bfloat16"),
        ((MAIN, SEGMENT, 1, torch.zeros(1, 128, dtype=torch.bfloat16)), {}, ValueError, "out must have 512 values"),
        ((INDEX, SEGMENT, 1), {}, ValueError, "give sf_format or layout"),
        ((INDEX, SEGMENT, 1), {"sf_format": "e4m3"}, ValueError, "bytes one of"),
        ((INDEX, SEGMENT, 1, torch.zeros(1, 128)), {"sf_format": "fp32"}, ValueError, "out cannot be given"),
        ((INDEX, SEGMENT, 1), {"sf_format": "ue8m0", "layout": FP8_FLOAT32_SF_INDEX_KV_FORMAT}, ValueError, "scales"),
    ],
)
def test_refused(arguments: tuple, named: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load_paged_kv_cache(*arguments, **named)
