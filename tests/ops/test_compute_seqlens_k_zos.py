"""`compute_seqlens_k_zos` (kernel_spec A.6)."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops.case import Case
from deepinfer.ops.compute_seqlens_k_zos import compute_seqlens_k_zos
from deepinfer.ops.execution import run
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@small_cases("compute_seqlens_k_zos")
def test_reference_against_a_loop(case: Case) -> None:
    call = case.call()
    outcome = run(case.factory, call, "reference", "cpu")
    k, q, remap, accepted = (one.value.tolist() for one in call.arguments)
    for i, before in enumerate(remap):
        k[i] += q[i]
        if 0 <= before < len(accepted):
            k[i] += accepted[before] - call.parameters[0]
    assert outcome.results["seqlens_k"].tolist() == k


@small_cases("compute_seqlens_k_zos")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("compute_seqlens_k_zos")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_interface_updates_in_place() -> None:
    seqlens_k = ints(10, 20, 30, 1)
    compute_seqlens_k_zos(seqlens_k, ints(6, 2, 6, 1), ints(1, -1, 0, 9), ints(5, 0), nextn=5)
    assert seqlens_k.tolist() == [11, 22, 36, 2]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"seqlens_k": torch.zeros(2)}, TypeError, "compute_seqlens_k_zos: seqlens_k must be int32, not float32"),
        ({"remap": ints(1)}, ValueError, "remap has the shape"),
        ({"prev_num_accepted_tokens": ints(1, 2, 3, 4)[::2]}, ValueError, "prev_num_accepted_tokens must be contig"),
        ({"nextn": -1}, ValueError, "nextn must be at least 0, not -1"),
        ({"nextn": 1.5}, TypeError, "nextn must be an int, not float"),
    ],
)
def test_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    good = {"seqlens_k": ints(1, 2), "seqlens_q": ints(1, 1), "remap": ints(-1, 0)}
    arguments = {**good, "prev_num_accepted_tokens": ints(3), "nextn": 3, **change}
    with pytest.raises(error, match=text):
        compute_seqlens_k_zos(**arguments)  # type: ignore[arg-type]
