"""`activation`: casts to FP8 and FP4, and SwiGLU before one (model_spec 3.0, 3.9)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from deepinfer.loading.dequantize import fp4_rows, fp8_rows
from deepinfer.ops.activation import quantize_fp4, quantize_fp8, swiglu_quantize
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


def _group(x: list[float], largest: float, floor: float, steps: torch.Tensor) -> tuple[int, torch.Tensor]:
    """A group by the specification's words, in float64: the scale's byte, and the distances to the nearest values."""
    finite = [min(abs(one), torch.finfo(torch.float32).max) for one in x if not math.isnan(one)]
    amax = max([*finite, floor])
    exponent = math.ceil(math.log2(amax / largest))
    while amax / 2.0**exponent > largest:  # the logarithm is rounded
        exponent += 1
    while amax / 2.0 ** (exponent - 1) <= largest:
        exponent -= 1
    scaled = torch.tensor(x, dtype=torch.float64).clamp(-largest * 2.0**exponent, largest * 2.0**exponent)
    distances = (scaled[:, None] / 2.0**exponent - steps[None, :]).abs()
    return exponent + 127, distances.amin(1) * 2.0**exponent


def _is_nearest(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, form: str) -> None:
    if form == "e4m3":
        largest, floor, found = 448.0, 1e-4, fp8_rows(values, scales)
        steps = E4M3[~E4M3.isnan()]
    else:
        largest, floor, found = 6.0, 6 * 2.0**-126, fp4_rows(values, scales)
        steps = torch.cat((E2M1, -E2M1))
    groups = x.double().reshape(-1, 32)
    for row, got, byte in zip(groups, found.reshape(-1, 32), scales.flatten().tolist(), strict=True):
        scale, distances = _group(row.tolist(), largest, floor, steps)
        assert byte == scale
        limit = largest * 2.0 ** (scale - 127)
        known = ~row.isnan()
        assert (row.clamp(-limit, limit) - got).abs()[known].equal(distances[known])
        if form == "e4m3":
            assert got[~known].isnan().all()


@small_cases("activation")
def test_reference_against_the_nearest_values(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    if case.factory != "swiglu_quantize":
        form = "e4m3" if case.factory == "quantize_fp8" else "e2m1"
        _is_nearest(results["x"][:8], results["values"][:8], results["scales"][:8], form)
        return
    gate, up = results["gate_up"].double().chunk(2, -1)
    gate, up = torch.where(gate > 10, 10.0, gate), torch.where(up.abs() > 10, up.sign() * 10, up)
    expected = gate * torch.sigmoid(gate) * up
    if call.parameters[0]:
        expected = expected * results["weights"].double()[:, None]
    expected[gate == -torch.inf] = torch.nan  # float32 has -inf / inf there
    found = fp8_rows(results["values"], results["scales"])
    steps = 2.0 ** (results["scales"].double() - 127).repeat_interleave(32, -1) * 2.0**-10
    near = (found - expected).abs() <= expected.abs() * 2.0**-4 * 1.01 + steps * 1.01
    assert (near | (expected.isnan() & found.isnan())).all()


@small_cases("activation")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("activation")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_interface() -> None:
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    values, scales = quantize_fp8(x[:, :64])
    again, same = quantize_fp8(fp8_rows(values, scales).float())
    assert again.view(torch.uint8).equal(values.view(torch.uint8)) and same.equal(scales)
    packed, sizes = quantize_fp4(x.bfloat16()[:, None])
    assert packed.shape == (3, 1, 64) and packed.dtype == torch.int8 and sizes.shape == (3, 1, 4)
    for m in (0, 3):
        first, second = swiglu_quantize(x[:m].bfloat16(), None, 10.0)
        assert first.shape == (m, 64) and second.shape == (m, 2)
    weights = torch.tensor([1.0, 0.0, 2.0])
    plain, weighted = (fp8_rows(*swiglu_quantize(x.bfloat16(), one, 10.0)) for one in (None, weights))
    assert weighted.equal(plain * weights[:, None])
    assert quantize_fp8(x[:0])[0].shape == (0, 128) and quantize_fp4(x.bfloat16()[:0, None])[1].shape == (0, 1, 4)


def test_a_row_with_nan_spoils_no_other() -> None:
    gate_up = torch.randn(3, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected, _ = swiglu_quantize(gate_up, None, 10.0)
    gate_up[1, 5], gate_up[1, 64 + 9] = torch.nan, torch.nan
    found, _ = swiglu_quantize(gate_up, None, 10.0)
    assert found[1].float().isnan().nonzero().flatten().tolist() == [5, 9]
    assert found[::2].view(torch.uint8).equal(expected[::2].view(torch.uint8))


ROWS = torch.zeros(2, 64, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: quantize_fp8(ROWS.half()), TypeError, "quantize_fp8: x must be bfloat16 or float32, not float16"),
        (lambda: quantize_fp8(ROWS[:, :33]), ValueError, "k must be a multiple of 32, not 33"),
        (lambda: quantize_fp8(ROWS.T), ValueError, "the last dimension of x must be contiguous"),
        (lambda: quantize_fp4(ROWS), ValueError, r"x must have the shape \[n, h, d\]"),
        (lambda: quantize_fp4(ROWS.float()[None]), TypeError, "x must be bfloat16, not float32"),
        (
            lambda: swiglu_quantize(ROWS[:, :32].contiguous(), None, 10.0),
            ValueError,
            "a multiple of 64 columns, not 32",
        ),
        (lambda: swiglu_quantize(ROWS, None, 0.0), ValueError, "limit must be above 0 and finite, not 0.0"),
        (lambda: swiglu_quantize(ROWS, None, math.nan), ValueError, "limit must be above 0 and finite"),
        (lambda: swiglu_quantize(ROWS, torch.zeros(3), 1.0), ValueError, "gate_up has m = 2"),
        (lambda: swiglu_quantize(ROWS[:, :0], None, 1.0), ValueError, "a multiple of 64 columns, not 0"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
