"""`store_mtp_info` (kernel_spec A.5)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.store_mtp_info import store_mtp_info
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@small_cases("store_mtp_info")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    nextn = call.parameters[0]
    slots, *sources = (one.value for one in call.arguments[:5])
    for source, pool in zip(sources, call.arguments[5:], strict=True):
        if pool.value is None:
            continue
        expected = pool.value.clone()
        for request, slot in enumerate(slots.tolist()):
            if slot > 0 and (slot + 1) * nextn <= len(expected):
                expected[slot * nextn : (slot + 1) * nextn] = source[request]
        assert results[pool.name].equal(expected)


@small_cases("store_mtp_info")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("store_mtp_info")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def arguments() -> dict[str, torch.Tensor | None]:
    return {
        "write_slots": ints([2, 0]),
        "token_ids": ints([[5, 6], [7, 8]]),
        "logprobs": torch.arange(8.0).view(2, 2, 2),
        "logprobs_index": None,
        "confidence": torch.tensor([[0.5, 0.25], [1.0, 1.0]]),
        "token_ids_pool": torch.full((6,), -1, dtype=torch.int32),
        "logprobs_pool": torch.full((6, 2), 9.0),
        "logprobs_index_pool": None,
        "confidence_pool": torch.zeros(6),
    }


def test_interface_keeps_the_padding_slot() -> None:
    given = arguments()
    store_mtp_info(**given)  # type: ignore[arg-type]
    tokens, logprobs, confidence = (given[f"{name}_pool"] for name in ("token_ids", "logprobs", "confidence"))
    assert tokens is not None and tokens.tolist() == [-1, -1, -1, -1, 5, 6]
    assert logprobs is not None and logprobs.tolist() == [[9.0, 9.0]] * 4 + [[0.0, 1.0], [2.0, 3.0]]
    assert confidence is not None and confidence.tolist() == [0.0, 0.0, 0.0, 0.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"write_slots": torch.zeros(2)}, TypeError, "store_mtp_info: write_slots must be int32, not float32"),
        ({"confidence": None}, ValueError, "confidence_pool must be given exactly where confidence is"),
        ({"logprobs_index_pool": torch.zeros(6, 2).int()}, ValueError, "logprobs_index_pool must be given exactly"),
        ({"logprobs_pool": torch.zeros(5, 2)}, ValueError, "logprobs_pool has the shape"),
        ({"logprobs": torch.zeros(2, 2, 4)[..., ::2]}, ValueError, "logprobs must be contiguous"),
    ],
)
def test_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        store_mtp_info(**{**arguments(), **change})  # type: ignore[arg-type]
