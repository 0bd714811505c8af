"""`dflash_copy` (kernel_spec A.8, #9)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.dflash_copy import NAMES, DraftInputs, copy_dflash_decode_input
from deepinfer.ops.execution import run
from deepinfer.ops.tolerance import as_bits
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("dflash_copy")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    values = {one.name: as_bits(one.value).tolist() for one in call.arguments if one.value is not None}
    for name in NAMES[: 9 if call.parameters[0] else 1]:
        src, padding, expected = (values[f"{group}_{name}"] for group in ("src", "padding", "dst"))
        for request in range(min(len(expected), len(src) + len(padding))):
            expected[request] = src[request] if request < len(src) else padding[request - len(src)]
        assert as_bits(results[f"dst_{name}"]).tolist() == expected


@small_cases("dflash_copy")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("dflash_copy")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def inputs(size: int, value: int) -> DraftInputs:
    whole = {name: torch.full((size,), value, dtype=torch.int32) for name in NAMES}
    floats = {name: torch.full((size,), value + 0.5) for name in ("temperatures", "top_ps")}
    seeds = torch.tensor([2**63 + value] * (size - 1) + [2**64 - 1], dtype=torch.uint64)
    return DraftInputs(**{**whole, **floats, "seq_seeds": seeds})


def test_a_graph_of_four_requests_two_of_them_live() -> None:
    dst, src, padding = inputs(4, 9), inputs(2, 1), inputs(3, 5)
    copy_dflash_decode_input(dst, src, padding)
    assert dst.seq_seeds is not None and dst.temperatures is not None
    assert dst.first_token_positions.tolist() == [1, 1, 5, 5]
    assert dst.seq_seeds.tolist() == [2**63 + 1, 2**64 - 1, 2**63 + 5, 2**63 + 5]
    assert dst.temperatures.tolist() == [1.5, 1.5, 5.5, 5.5]


def test_without_driver_inputs() -> None:
    dst, src, padding = (DraftInputs(torch.full((size,), size, dtype=torch.int32)) for size in (3, 1, 2))
    copy_dflash_decode_input(dst, src, padding)
    assert dst.first_token_positions.tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("dst", "src", "padding", "error", "text"),
    [
        (inputs(1, 0), inputs(2, 0), inputs(2, 0), ValueError, "dst holds 1 requests, fewer than the 2 of src"),
        (
            inputs(2, 0),
            replace(inputs(2, 0), seq_seeds=torch.zeros(2, dtype=torch.int64)),
            inputs(2, 0),
            TypeError,
            "src.seq_seeds must be uint64, not int64",
        ),
        (inputs(2, 0), inputs(2, 0), replace(inputs(2, 0), top_ks=None), TypeError, "padding.top_ks must be a tensor"),
        (
            inputs(2, 0),
            DraftInputs(inputs(2, 0).first_token_positions),
            DraftInputs(inputs(2, 0).first_token_positions),
            ValueError,
            "dst.last_valid_offset must be None where src.last_valid_offset is",
        ),
        (
            inputs(2, 0),
            replace(inputs(2, 0), top_ps=torch.zeros(3)),
            inputs(2, 0),
            ValueError,
            r"src.top_ps has the shape \[3\]",
        ),
    ],
)
def test_refused(dst: DraftInputs, src: DraftInputs, padding: DraftInputs, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"copy_dflash_decode_input: {text}"):
        copy_dflash_decode_input(dst, src, padding)
