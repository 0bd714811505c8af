"""`per128`: casts with a scale per 128 columns, and the experts' padded rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.loading.dequantize import fp8_rows
from deepinfer.ops.activation import quantize_fp8, swiglu_quantize
from deepinfer.ops.case import Case
from deepinfer.ops.dispatch import using
from deepinfer.ops.execution import run
from deepinfer.ops.experts import expert_order
from deepinfer.ops.per128 import (
    expert_rows,
    most_expert_rows,
    quantize_per128,
    regroup_per128,
    rotate_heads_per128,
    swiglu_per128,
)
from deepinfer.ops.rotary import rotate_heads_quantize
from deepinfer.ops.tolerance import as_bits
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
STEPS = E4M3[~E4M3.isnan()]


def wide(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Rows as float64."""
    return values.double() * scales.double().repeat_interleave(128, -1)


def _is_nearest(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> None:
    """Every value is the nearest at its scale, and no smaller scale would hold the group."""
    groups = x.double().reshape(-1, 128)
    for row, got, scale in zip(groups, values.reshape(-1, 128), scales.flatten().double(), strict=True):
        known = ~row.isnan()
        amax = row[known].abs().max() if known.any() else torch.zeros((), dtype=torch.float64)
        amax = amax.clamp(1e-4, torch.finfo(torch.float32).max)
        assert amax <= 448 * scale and amax > 448 * scale / 2 and scale.log2() % 1 == 0
        row = row.clamp(-448 * scale, 448 * scale)  # an infinity saturates
        distances = (row[known, None] / scale - STEPS).abs().amin(1)
        assert (row[known] / scale - got[known].double()).abs().equal(distances)
        assert got[~known].double().isnan().all()


@small_cases("per128")
def test_reference_against_its_words(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    given_ = {one.name: one.value for one in call.arguments}
    match case.factory:
        case "quantize_per128":
            x, choices = results["x"].float(), given_["choices"]
            rows = torch.arange(len(x)) if choices is None else choices // given_["topk"]
            live = torch.ones_like(rows, dtype=torch.bool) if choices is None else (choices >= 0) & (rows < len(x))
            _is_nearest(x[rows[live]], results["values"][live], results["scales"][live])
            assert (results["values"].view(torch.uint8)[~live] == 77).all() and (results["scales"][~live] == 77).all()
        case "swiglu_per128":
            _is_swiglu(results, given_)
        case "rotate_heads_per128":
            narrow = rotate_heads_quantize(given_["o"], given_["positions"], given_["cos_sin"], 1)
            _near_narrow(wide(results["values"], results["scales"]), fp8_rows(*(one.flatten(1) for one in narrow)))
        case "regroup_per128":
            _is_nearest(fp8_rows(given_["values"], given_["scales"]), results["wide_values"], results["wide_scales"])
        case _:
            _are_rows(results, *call.parameters)


def _is_swiglu(results: dict[str, torch.Tensor], given_: dict[str, torch.Tensor]) -> None:
    gate, up = results["gate_up"].double().chunk(2, -1)
    gate, up = torch.where(gate > 10, 10.0, gate), torch.where(up.abs() > 10, up.sign() * 10, up)
    expected, choices = gate * torch.sigmoid(gate) * up, given_["choices"]
    expected[gate == -torch.inf] = torch.nan  # float32 has -inf / inf there
    live = torch.ones(len(gate), dtype=torch.bool)
    if choices is not None:
        live = (choices >= 0) & (choices < len(given_["weights"]))
        expected[live] *= given_["weights"].double()[choices[live].long(), None]
    found, steps = wide(results["values"], results["scales"]), results["scales"].double().repeat_interleave(128, -1)
    near = (found - expected).abs() <= expected.abs() * 2.0**-4 * 1.01 + steps * 2.0**-10 * 1.01
    assert (near | (expected.isnan() & found.isnan()))[live].all()
    assert (results["values"].view(torch.uint8)[~live] == 77).all()


def _near_narrow(found: torch.Tensor, narrow: torch.Tensor) -> None:
    """The values of Q8 itself, but for what a scale of 128 columns makes subnormal."""
    amax = narrow.abs().unflatten(-1, (-1, 128)).amax(-1).clamp(min=1e-4).repeat_interleave(128, -1)
    assert found.isnan().equal(narrow.isnan())
    off = torch.where(narrow.isnan(), 0.0, (found - narrow).abs())
    assert (off <= torch.where(amax.isnan(), torch.inf, amax) * 2.0**-17).all()


def _are_rows(results: dict[str, torch.Tensor], experts: int, alignment: int) -> None:
    order, offsets = results["order"].tolist(), results["offsets"].tolist()
    expected, ends = [], []
    for expert in range(experts):
        own = order[offsets[expert] : offsets[expert + 1]]
        ends.append(len(expected) + len(own))
        expected += own + [-1] * (-len(own) % alignment)
    rows = results["choices"].tolist()
    assert len(expected) <= len(rows) and rows == expected + [-1] * (len(rows) - len(expected))
    assert results["ends"].tolist() == ends


@small_cases("per128")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("per128")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 3), st.integers(-12, 6))
@settings(max_examples=30)
def test_what_was_quantised_is_not_changed_by_quantising_it_again(seed: int, n: int, parts: int, power: int) -> None:
    x = torch.randn(n, parts * 128, generator=torch.Generator().manual_seed(seed)) * 10.0**power
    x[0, :128] = 0
    with using("reference"):
        values, scales = quantize_per128(x)
        again = wide(*quantize_per128(wide(values, scales).float()))
        narrow = quantize_fp8(x)
        found = wide(*regroup_per128(*narrow))
    assert again.equal(wide(values, scales))
    assert values[0, :128].float().eq(0).all()
    _near_narrow(found, fp8_rows(*narrow))


def test_scales_lie_column_by_column() -> None:
    o = torch.randn(5, 4, 512, generator=torch.Generator().manual_seed(3))
    table = torch.cat((torch.ones(9, 32), torch.zeros(9, 32)), -1)
    with using("reference"):
        plain = quantize_per128(o.flatten(1))
        grouped = rotate_heads_per128(o, torch.arange(5), table, 2)
    assert plain.scales.shape == (5, 16) and plain.scales.stride() == (1, 8)
    assert grouped.values.shape == (5, 2, 1024) and grouped.scales.stride() == (1, 64, 8)
    assert grouped.scales.flatten(1).equal(plain.scales)
    assert as_bits(grouped.values.flatten(1)).equal(as_bits(plain.values))


def test_experts_rows_through_their_casts() -> None:
    """What a choice's row gets is what it gets alone."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 5, (30, 3), generator=generator, dtype=torch.int32)
    ids[4] = -1
    x, weights = torch.randn(30, 256, generator=generator).bfloat16(), torch.rand(90, generator=generator)
    with using("reference"):
        order, offsets = expert_order(ids, 5)
        ends, choices = expert_rows(order, offsets, 64)
        assert len(choices) == most_expert_rows(90, 5, 64) and ends.tolist()[-1] <= len(choices)
        found, alone = quantize_per128(x, choices, 3), quantize_per128(x)
        live = choices >= 0
        assert sorted(choices[live].tolist()) == [one for one in range(90) if one // 3 != 4]
        for one, two in zip(found, alone, strict=True):
            assert as_bits(one[live]).equal(as_bits(two[choices[live] // 3]))
        inner = wide(*swiglu_per128(x[choices.clamp(min=0) // 3].contiguous(), 10.0, weights, choices))
        expected = fp8_rows(*swiglu_quantize(x[choices[live] // 3], weights[choices[live].long()], 10.0))
    _near_narrow(inner[live], expected)


@pytest.mark.parametrize(
    ("choices", "experts", "alignment", "rows"),
    [(0, 4, 64, 0), (1, 4, 64, 64), (6, 384, 64, 384), (7, 2, 128, 256), (24576, 384, 64, 48768), (130, 1, 128, 256)],
)
def test_how_many_rows_there_may_be(choices: int, experts: int, alignment: int, rows: int) -> None:
    assert most_expert_rows(choices, experts, alignment) == rows


@given(st.lists(st.integers(0, 200), min_size=1, max_size=9), st.sampled_from([64, 128]))
@settings(max_examples=60)
def test_there_is_always_room(counts: list[int], alignment: int) -> None:
    taken = sum(-(-count // alignment) * alignment for count in counts)
    assert taken <= most_expert_rows(sum(counts), len(counts), alignment)


X, IDS = torch.zeros(2, 256, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: quantize_per128(X[:, :96]), ValueError, "x must have a multiple of 128 columns, not 96"),
        (lambda: quantize_per128(X.half()), TypeError, "x must be bfloat16 or float32"),
        (lambda: quantize_per128(X, None, 2), ValueError, "topk goes with choices"),
        (lambda: quantize_per128(X, IDS.long()), TypeError, "choices must be int32"),
        (lambda: swiglu_per128(X, 0.0), ValueError, "limit must be above 0"),
        (lambda: swiglu_per128(X[:, :128].contiguous(), 1.0), ValueError, "a multiple of 256 columns, not 128"),
        (lambda: swiglu_per128(X, 1.0, torch.zeros(3)), ValueError, "goes with weights: both or neither"),
        (lambda: regroup_per128(X, X), TypeError, "values must be float8_e4m3fn"),
        (lambda: rotate_heads_per128(torch.zeros(1, 3, 512), IDS[:1], torch.zeros(4, 64), 2), ValueError, "of 2 heads"),
        (lambda: expert_rows(IDS, IDS, 32), ValueError, r"alignment must be one of 64, 128, not 32"),
        (lambda: expert_rows(IDS, IDS[:1], 64), ValueError, "E must be at least 1"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
