"""`linear`: products with the model's weights (model_spec 2.2, 3.0, 3.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.loading.dequantize import fp8_blocks, fp8_rows
from deepinfer.ops.case import Case
from deepinfer.ops.cases import quantized
from deepinfer.ops.dispatch import using
from deepinfer.ops.execution import run
from deepinfer.ops.linear import bf16_linear, fp8_grouped_linear, fp8_linear
from deepinfer.ops.tolerance import as_bits, difference
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("linear")
def test_reference_against_sums_in_float64(case: Case) -> None:
    call = case.call()
    given = {one.name: one.value for one in call.arguments}
    if case.factory == "bf16_linear":
        expected = given["x"].double() @ given["weight"].double().T
        if call.parameters[-1]:
            expected = (given["out"] + expected.float()).double()
    else:
        rows = fp8_rows(given["values"], given["scales"])
        weight = fp8_blocks(given["weight"], given["weight_scales"])
        groups = rows.shape[1] if rows.dim() == 3 else 1
        parts = rows.view(len(rows), groups, rows.shape[-1])
        each = len(weight) // groups
        found = [parts[:, g] @ weight[g * each : (g + 1) * each].T for g in range(groups)]
        expected = torch.cat(found, 1)
    out = run(case.factory, call, "reference", "cpu").results["out"]
    one_step = quantized.BF16_PRODUCT if out.dtype == torch.bfloat16 else quantized.FP32_PRODUCT
    assert difference("out", expected.to(out.dtype), out, one_step) == ""
    assert (as_bits(out) != as_bits(expected.to(out.dtype))).float().mean() < 0.01 or not out.numel()


@small_cases("linear")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("linear")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _inputs(n: int, device: str = "cpu", k: int = 160, o: int = 96) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    values, scales = quantized.rows(generator, 130, k)
    weight, weight_scales = quantized.fp8_weight(generator, o, k)
    return [one.to(device) for one in (values[:n], scales[:n], weight, weight_scales)]


def test_tiles_are_large_where_they_are_enough_for_half_of_the_device() -> None:
    from deepinfer.ops.triton.linear import fp8_tiles

    def columns(rows: int, outputs: int, groups: int = 1, processors: int = 132) -> int:
        return fp8_tiles(rows, outputs, groups, processors).n

    assert [columns(rows, 1792) for rows in (1, 16, 17, 64, 65, 256, 512, 640, 4096)] == [16, 16, *[64] * 5, 128, 128]
    assert [columns(rows, 36864) for rows in (16, 17, 64, 65, 4096)] == [16, 64, 64, 128, 128]
    assert [columns(256, 5120, groups, processors) for groups, processors in ((1, 132), (1, 161), (8, 161))] == [
        128, 64, 128,
    ]  # fmt: skip
    assert all(columns(4096, outputs) == 128 for outputs in (512, 1280, 1536, 1792, 4096, 4608, 5120))


@pytest.mark.gpu
@pytest.mark.parametrize("processors", [2, 10_000])
@pytest.mark.parametrize(("k", "o"), [(160, 96), (512, 128), (1280, 512)])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    k: int, o: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """processors: with 2 there are enough large tiles for any device, with 10 000 for none."""
    from deepinfer.ops.triton import linear

    monkeypatch.setattr(linear, "multiprocessors", lambda device: processors)
    values, scales, weight, weight_scales = _inputs(130, "cuda", k, o)
    for dtype in (torch.bfloat16, torch.float32):
        with using("triton"):
            whole = fp8_linear(values, scales, weight, weight_scales, out_dtype=dtype)
            for row in (0, 63, 64, 129):
                alone = fp8_linear(values[row : row + 1], scales[row : row + 1], weight, weight_scales, out_dtype=dtype)
                assert as_bits(alone[0]).equal(as_bits(whole[row]))
            for n in (2, 16, 17, 64, 65):
                some = fp8_linear(values[:n], scales[:n], weight, weight_scales, out_dtype=dtype)
                assert as_bits(some).equal(as_bits(whole[:n]))


def test_interface() -> None:
    values, scales, weight, weight_scales = _inputs(5)
    found = fp8_linear(values, scales, weight, weight_scales)
    assert found.shape == (5, 96) and found.dtype == torch.bfloat16
    wide = torch.empty(5, 96)
    assert fp8_linear(values, scales, weight, weight_scales, out_dtype=torch.float32, out=wide) is wide
    assert wide.bfloat16().equal(found)
    halves = fp8_grouped_linear(
        torch.stack((values, values), 1), torch.stack((scales, scales), 1), weight[:64], weight_scales[:2]
    )
    assert halves.equal(found[:, :64])
    x, plain = fp8_rows(values, scales).bfloat16(), fp8_blocks(weight, weight_scales).bfloat16()
    assert bf16_linear(x, plain).equal(found)
    kept = torch.ones(5, 96)
    assert bf16_linear(x, plain, out_dtype=torch.float32, accumulate_into=kept) is kept
    assert kept.equal(1 + wide)
    assert fp8_linear(values[:0], scales[:0], weight, weight_scales).shape == (0, 96)
    assert bf16_linear(x[:0], plain).shape == (0, 96)


def test_a_row_with_nan_spoils_no_other() -> None:
    values, scales, weight, weight_scales = _inputs(5)
    expected = fp8_linear(values, scales, weight, weight_scales)
    values.view(torch.uint8)[2, 7] = 0x7F
    found = fp8_linear(values, scales, weight, weight_scales)
    assert found[2].isnan().all()
    assert found[[0, 1, 3, 4]].equal(expected[[0, 1, 3, 4]])


def _fp8(**changed: Callable[[torch.Tensor], object]) -> object:
    names = ("values", "scales", "weight", "weight_scales")
    given = dict(zip(names, _inputs(5), strict=True))
    return fp8_linear(**{name: changed.get(name, lambda same: same)(one) for name, one in given.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: _fp8(values=lambda v: v.float()), TypeError, "fp8_linear: values must be float8_e4m3fn, not float32"),
        (lambda: _fp8(values=lambda v: v[:, :128]), ValueError, "values must be contiguous"),
        (lambda: _fp8(scales=lambda v: v[:, :4].contiguous()), ValueError, "scales .*shape"),
        (lambda: _fp8(weight=lambda v: v[:, :128].contiguous()), ValueError, "values has k = 160"),
        (lambda: _fp8(weight_scales=lambda v: v.float()), TypeError, "weight_scales must be uint8"),
        (
            lambda: _fp8(weight=lambda v: torch.zeros(v.numel() + 2, dtype=v.dtype)[2:].view(v.shape)),
            ValueError,
            "weight must start at a multiple of 4 bytes of its storage, not at 2",
        ),
        (lambda: _fp8(weight=lambda v: v.to("meta")), ValueError, "weight is on meta"),
        (
            lambda: fp8_linear(*_inputs(5), out_dtype=torch.float16),
            ValueError,
            "out_dtype must be one of torch.bfloat16, torch.float32",
        ),
        (lambda: fp8_linear(*_inputs(5), out=torch.empty(5, 96)), TypeError, "out must be bfloat16"),
        (
            lambda: bf16_linear(torch.zeros(2, 33).bfloat16(), torch.zeros(4, 33).bfloat16()),
            ValueError,
            "k must be a multiple of 32, not 33",
        ),
        (
            lambda: bf16_linear(
                torch.zeros(2, 32).bfloat16(), torch.zeros(4, 32).bfloat16(), accumulate_into=torch.zeros(2, 4)
            ),
            ValueError,
            "out_dtype must be float32 where accumulate_into is given",
        ),
        (
            lambda: fp8_grouped_linear(*(one[:, None].expand(-1, 2, -1).contiguous() for one in _inputs(5)[:2]),
                                       *_inputs(5)[2:]),
            ValueError,
            "weight must have a multiple of 32 rows for each of 2 groups, not 96",
        ),
    ],
)  # fmt: skip
def test_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
