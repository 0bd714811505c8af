"""`state_cache` (kernel_spec A.16)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.state_cache import load_state_to_cache, select_state_slice
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("state_cache")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    tensor, cache, p = (one.value for one in call.arguments)
    results = run(case.factory, call, "reference", "cpu").results
    kvstore, inference = call.parameters[:2]
    loading = case.factory == "load_state_to_cache_tl"
    expected = (cache if loading else tensor).clone()
    for t in range(p - inference, p):
        if loading:
            expected[:, t % kvstore] = tensor[:, t % inference]
        else:
            expected[:, t % inference] = cache[:, t % kvstore]
    assert results["state_cache" if loading else "state_tensor"].equal(expected)


@small_cases("state_cache")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("state_cache")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_a_round_trip_gives_the_positions_back() -> None:
    cache = torch.randint(0, 256, (2, 10, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    kept, other = torch.zeros((2, 4, 8), dtype=torch.uint8), torch.zeros((2, 10, 8), dtype=torch.uint8)
    with using("reference"):
        select_state_slice(kept, cache, 13)
        load_state_to_cache(kept, other, 13)
    held = [t % 10 for t in range(9, 13)]
    assert other[:, held].equal(cache[:, held])
    assert not other[:, [row for row in range(10) if row not in held]].any()


_TENSOR = torch.zeros((2, 4, 8), dtype=torch.uint8)
_CACHE = torch.zeros((2, 6, 8), dtype=torch.uint8)


@pytest.mark.parametrize("function", [select_state_slice, load_state_to_cache])
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((_TENSOR.int(), _CACHE, 5), TypeError, "state_tensor must be uint8, not int32"),
        ((_TENSOR, _CACHE[:1], 5), ValueError, "L = 2"),
        ((_TENSOR, _CACHE[:, :, :4], 5), ValueError, "F = 8"),
        ((_TENSOR, _CACHE[:, :3], 5), ValueError, "state_cache must have at least Bi = 4 rows a layer, not 3"),
        ((_TENSOR[..., :4].contiguous(), _CACHE[..., :4].contiguous(), 5), ValueError, "multiples of 8"),
        ((_TENSOR, _CACHE, 2**31), ValueError, "last_hit_position must be at least"),
        ((_TENSOR, _CACHE, 5.0), TypeError, "last_hit_position must be an int, not float"),
        ((_TENSOR, _CACHE.to("meta"), 5), ValueError, "state_cache is on meta"),
    ],
)
def test_refused(function: Any, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function(*arguments)
