"""`schedule_mtp_varlen` (kernel_spec A.5)."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.schedule_mtp_varlen import compute_seqlens_q_by_confidence_rates
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def by_loops(total_q: int, remap: list[int], rates: list[list[float]]) -> tuple[list[int], list[list[float]]]:
    """Products in float32, one after another, then a sort by (product descending, place)."""
    nextn = len(rates[0])
    products = []
    for before in remap:
        row, product = [0.0] * nextn, 1.0
        if 0 <= before < len(rates):
            for step, rate in enumerate(rates[before]):
                product = struct.unpack("f", struct.pack("f", product * rate))[0]  # exact in 64 bits, then one rounding
                row[step] = 0.0 if math.isnan(product) else product
        products.append(row)
    ranked = sorted((-value, place) for place, value in enumerate(value for row in products for value in row))
    lengths = [1] * len(remap)
    for _, place in ranked[: max(total_q - len(remap), 0)]:
        lengths[place // nextn] += 1
    return lengths, products


@small_cases("schedule_mtp_varlen")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    remap, rates, _, _, total_q = (one.value for one in call.arguments)
    lengths, products = by_loops(total_q, remap.tolist(), rates.tolist())
    assert results["seqlens_q"].tolist() == lengths
    assert results["cum_rates"].tolist() == products


@small_cases("schedule_mtp_varlen")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("schedule_mtp_varlen")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_conformance_vector_22() -> None:
    lengths = torch.empty(2, dtype=torch.int32)
    rates = torch.tensor([[0.9, 0.5], [0.8, 0.8]])
    compute_seqlens_q_by_confidence_rates(5, ints([0, 1]), rates, lengths)
    assert lengths.tolist() == [2, 3]


@settings(max_examples=60)
@given(
    remap=st.lists(st.integers(-1, 4), max_size=12),
    rates=st.lists(st.lists(st.sampled_from([0.0, 0.5, 0.25, 1.0]), min_size=3, max_size=3), min_size=4, max_size=4),
    total_q=st.integers(0, 60),
)
def test_every_row_is_given_once(remap: list[int], rates: list[list[float]], total_q: int) -> None:
    lengths = torch.full((len(remap),), -9, dtype=torch.int32)
    compute_seqlens_q_by_confidence_rates(total_q, ints(remap), torch.tensor(rates), lengths)
    assert lengths.tolist() == by_loops(total_q, remap, rates)[0]
    assert int(lengths.sum()) == min(max(total_q, len(remap)), 4 * len(remap))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((-1, ints([0]), torch.ones(1, 2), ints([0])), ValueError, "total_q must be at least 0"),
        ((2.0, ints([0]), torch.ones(1, 2), ints([0])), TypeError, "total_q must be an int, not float"),
        (
            (2, ints([0]), torch.ones(1, 0), ints([0])),
            ValueError,
            "prev_confidence_rates must have at least one column",
        ),
        ((2, ints([0]), torch.ones(1, 2).double(), ints([0])), TypeError, "prev_confidence_rates must be float32"),
        ((2, ints([0]), torch.ones(1, 2), ints([0, 0])), ValueError, "seqlens_q has the shape"),
    ],
)
def test_refused(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"compute_seqlens_q_by_confidence_rates: {text}"):
        compute_seqlens_q_by_confidence_rates(*arguments)  # type: ignore[arg-type]
