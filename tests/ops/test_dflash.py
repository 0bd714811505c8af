"""`dflash` (kernel_spec A.8)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.cases import cases
from deepinfer.ops.dflash import confidence_head_fused, dflash_input_store
from deepinfer.ops.execution import run
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def _sigmoid(z: float, temperature: float) -> float:
    return z if math.isnan(z) else 1 / (1 + math.exp(-min(max(z / temperature, -60.0), 60.0)))


@small_cases("dflash")
def test_reference_against_doubles(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    if case.factory == "confidence_head_fused_tl":
        x0, x1, weight, _, temperature = (one.value for one in call.arguments)
        joined = x0 if x1 is None else torch.cat((x0, x1), 1)
        expected = [_sigmoid(z, temperature) for z in (joined.double() @ weight.double()).tolist()]
        torch.testing.assert_close(
            results["out"].double(), torch.tensor(expected).double(), atol=1e-5, rtol=0, equal_nan=True
        )
    else:
        mean = call.arguments[0].value.double().mean(1)
        torch.testing.assert_close(results["out"].double(), mean, atol=0, rtol=2**-8 * 1.01)


@small_cases("dflash")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("dflash")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


@pytest.mark.gpu
def test_confidences_are_the_same_ten_times_and_alone() -> None:
    case = next(case for case in cases(["dflash"]) if case.name.startswith("confidence-4097x7168"))
    values = {one.name: one.value for one in case.call().arguments}
    x0, x1, weight = (values[name].cuda() for name in ("x0", "x1", "weight"))

    def bits(rows: slice) -> torch.Tensor:
        return confidence_head_fused(x0[rows], weight, values["temp"], x1[rows]).view(torch.int32)

    with using("triton"):
        first = bits(slice(None))
        assert all(bits(slice(None)).equal(first) for _ in range(10))
        assert all(bits(slice(row, row + 1)).equal(first[row : row + 1]) for row in (0, 7, 4096))


def test_interfaces() -> None:
    hidden, emb = torch.tensor([[2.0] * 8, [0.0] * 8]).bfloat16(), torch.tensor([[1.0], [-1000.0]]).bfloat16()
    weight = torch.tensor([[0.25] * 8 + [1.0]]).bfloat16()
    with using("reference"):
        assert confidence_head_fused(hidden, weight[:, :8], 2.0).tolist() == pytest.approx([_sigmoid(4, 2), 0.5])
        kept = torch.zeros(6)[::3]
        assert confidence_head_fused(hidden, weight, 1, emb, kept) is kept
        assert kept.tolist() == pytest.approx([_sigmoid(5, 1), math.exp(-60)])
        streams = torch.tensor([[[1.0, 2.0], [3.0, 2.0]]]).bfloat16()
        assert dflash_input_store(streams).tolist() == [[2.0, 2.0]]
        wide = torch.zeros((1, 8), dtype=torch.bfloat16)
        dflash_input_store(streams, wide[:, 4:6])
    assert wide.tolist() == [[0, 0, 0, 0, 2, 2, 0, 0]]


_HIDDEN = torch.zeros((2, 16), dtype=torch.bfloat16)
_WEIGHT = torch.zeros(16, dtype=torch.bfloat16)
_STREAMS = torch.zeros((2, 4, 16), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (confidence_head_fused, (_HIDDEN.float(), _WEIGHT, 1.0), TypeError, "hidden must be bfloat16, not float32"),
        (confidence_head_fused, (_HIDDEN, _WEIGHT[:8], 1.0), ValueError, "weight must have 16 elements, not 8"),
        (confidence_head_fused, (_HIDDEN, _WEIGHT, 1.0, _HIDDEN), ValueError, "weight must have 32 elements, not 16"),
        (confidence_head_fused, (_HIDDEN, _WEIGHT, 0.0), ValueError, "temperature must be positive and finite"),
        (confidence_head_fused, (_HIDDEN, _WEIGHT, math.nan), ValueError, "temperature must be positive and finite"),
        (confidence_head_fused, (_HIDDEN, _WEIGHT, "1"), TypeError, "temperature must be a number, not str"),
        (confidence_head_fused, (_HIDDEN, _WEIGHT, 1.0, None, torch.zeros(3)), ValueError, "N = 2"),
        (confidence_head_fused, (_HIDDEN, [1.0], 1.0), ValueError, "weight must be a tensor"),
        (confidence_head_fused, (_HIDDEN[:, :12].contiguous(), _WEIGHT, 1.0), ValueError, "multiples of 8"),
        (dflash_input_store, (_HIDDEN,), ValueError, r"hidden_states must have the shape \[N, hc_mult, n_embed\]"),
        (dflash_input_store, (_STREAMS[:, :0],), ValueError, "at least one residual stream"),
        (dflash_input_store, (_STREAMS, _HIDDEN[:, :8]), ValueError, "n_embed = 16"),
        (dflash_input_store, (_STREAMS, torch.zeros((2, 18), dtype=torch.bfloat16)[:, :16]), ValueError, "of 4"),
    ],
)
def test_refused(function: Any, arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function(*arguments)
