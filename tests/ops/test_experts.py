"""`experts`: rows sorted by expert, grouped FP4 products, and the sum of the experts (model_spec 2.3, 3.9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.config import Moe
from deepinfer.loading.dequantize import fp4_rows, fp8_rows
from deepinfer.ops.activation import quantize_fp8, swiglu_quantize
from deepinfer.ops.case import Case
from deepinfer.ops.cases import quantized
from deepinfer.ops.dispatch import using
from deepinfer.ops.execution import run
from deepinfer.ops.experts import combine, expert_linear, expert_order
from deepinfer.ops.linear import fp8_linear
from deepinfer.ops.tolerance import as_bits, difference
from deepinfer.reference.layers import Routing, experts
from deepinfer.reference.precision import ROUNDED
from deepinfer.reference.weights import Weights
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("experts")
def test_reference_against_loops(case: Case) -> None:
    call = case.call()
    results = run(case.factory, call, "reference", "cpu").results
    if case.factory == "expert_order":
        _is_sorted(results["ids"], results["order"], results["offsets"], call.parameters[0])
    elif case.factory == "combine":
        _is_sum(results, call.parameters[0])
    else:
        ends = results["offsets"].tolist()
        values = fp8_rows(results["values"], results["scales"])
        expected = torch.zeros(results["out"].shape, dtype=torch.float64)
        for position, row in enumerate(results["rows"].tolist()):
            for expert in range(len(ends) - 1):
                if ends[expert] <= position < ends[expert + 1] and 0 <= row < len(values):
                    weight = fp4_rows(results["weight"][expert], results["weight_scales"][expert])
                    expected[position] = weight @ values[row]
        assert difference("out", expected.bfloat16(), results["out"], quantized.BF16_PRODUCT) == ""


def _is_sorted(ids: torch.Tensor, order: torch.Tensor, offsets: torch.Tensor, count: int) -> None:
    flat = ids.flatten().tolist()
    expected, ends = [], [0]
    for expert in range(count):
        expected += [position for position, one in enumerate(flat) if one == expert]
        ends.append(len(expected))
    assert offsets.tolist() == ends
    assert order.tolist() == expected + [-1] * (len(flat) - len(expected))


def _is_sum(results: dict[str, torch.Tensor], topk: int) -> None:
    order = results["order"].tolist()
    for row, shared in enumerate(results["shared"]):
        total = shared.float()
        for rank in range(topk):
            if row * topk + rank in order:
                total = total + results["routed"][order.index(row * topk + rank)].float()
        assert as_bits(results["out"][row]).equal(as_bits(total.bfloat16()))


@small_cases("experts")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("experts")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


EXPERTS, TOPK, WIDTH, INNER = 5, 3, 64, 96


class Layer:
    """A sub-layer of experts over the first n of 70 rows, put together from its parts."""

    def __init__(self, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(11)
        x = torch.randn(70, WIDTH, generator=generator).bfloat16()
        ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOPK] for _ in range(70)]).int()
        weights = torch.rand(70, TOPK, generator=generator)
        self.rows = [one.to(device) for one in (x, ids, weights)]
        self.up, self.shared_up, self.down, self.shared_down = (
            tuple(one.to(device) for one in made(generator))
            for made in (
                lambda g: quantized.fp4_weight(g, EXPERTS, 2 * INNER, WIDTH),
                lambda g: quantized.fp8_weight(g, 2 * INNER, WIDTH),
                lambda g: quantized.fp4_weight(g, EXPERTS, WIDTH, INNER),
                lambda g: quantized.fp8_weight(g, WIDTH, INNER),
            )
        )

    def __call__(self, n: int) -> torch.Tensor:
        x, ids, weights = (one[:n].contiguous() for one in self.rows)
        order, offsets = expert_order(ids, EXPERTS)
        y = quantize_fp8(x)
        inner = swiglu_quantize(
            expert_linear(*y, order // TOPK, offsets, *self.up), weights.flatten()[order.long()].contiguous(), 10.0
        )
        positions = torch.arange(len(order), dtype=torch.int32, device=x.device)
        routed = expert_linear(*inner, positions, offsets, *self.down)
        shared = fp8_linear(*swiglu_quantize(fp8_linear(*y, *self.shared_up), None, 10.0), *self.shared_down)
        return combine(shared, routed, order, TOPK)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its weights as a checkpoint names them."""
        found = {}
        sides = [(f"experts.{e}", tuple(one[e] for one in self.up), tuple(one[e] for one in self.down))
                 for e in range(EXPERTS)]  # fmt: skip
        for name, up, down in [*sides, ("shared_experts", self.shared_up, self.shared_down)]:
            for part, one in zip(("weight", "scale"), up, strict=True):
                found[f"ffn.{name}.w1.{part}"], found[f"ffn.{name}.w3.{part}"] = one.chunk(2)
            found[f"ffn.{name}.w2.weight"], found[f"ffn.{name}.w2.scale"] = down
        return found


def test_a_layer_of_them_against_the_oracle() -> None:
    layer = Layer()
    x, ids, weights = layer.rows
    moe = Moe(experts=EXPERTS, topk=TOPK, shared=1, intermediate=INNER, scaling=1.0, swiglu_limit=10.0)
    routing = Routing(ids.long(), torch.zeros(70, EXPERTS))
    oracle = Weights(layer.tensors(), torch.float64)
    expected = experts(ROUNDED, moe, x.double(), routing, weights.double(), oracle, "ffn").bfloat16()
    found = layer(70)
    assert expected.float().std() > 0.1
    # The oracle's sums are float64, and so is its exponential function: now and then a value is rounded otherwise.
    assert (found == expected).float().mean() > 0.98
    assert (found.float() - expected.float()).abs().max() < 0.05


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    layer = Layer()
    whole = layer(70)
    for n in (1, 2, 33):
        assert layer(n).equal(whole[:n])


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    layer = Layer("cuda")
    with using("triton"):
        whole = layer(70)
        for n in (1, 2, 33):
            assert as_bits(layer(n)).equal(as_bits(whole[:n]))


def test_interface_without_rows_or_choices() -> None:
    order, offsets = expert_order(torch.zeros(0, 6, dtype=torch.int32), 4)
    assert order.shape == (0,) and offsets.tolist() == [0] * 5
    order, offsets = expert_order(torch.tensor([[1, -1], [9, 0]], dtype=torch.int32), 2)
    assert order.tolist() == [3, 0, -1, -1] and offsets.tolist() == [0, 1, 2]
    shared = torch.ones(2, 32).bfloat16()
    nothing = torch.full((4,), -1, dtype=torch.int32)
    assert combine(shared, torch.full((4, 32), torch.nan).bfloat16(), nothing, 2).equal(shared)
    assert combine(shared[:0], torch.zeros(0, 32).bfloat16(), nothing[:0], 2).shape == (0, 32)


def _call(**changed: object) -> object:
    generator = torch.Generator().manual_seed(1)
    values, scales = quantized.rows(generator, 4, 64)
    weight, weight_scales = quantized.fp4_weight(generator, 3, 32, 64)
    given = {
        "values": values, "scales": scales, "rows": torch.zeros(4, dtype=torch.int32),
        "offsets": torch.zeros(4, dtype=torch.int32), "weight": weight, "weight_scales": weight_scales,
    }  # fmt: skip
    return expert_linear(**{**given, **changed})  # type: ignore[arg-type]


IDS = torch.zeros(2, 3, dtype=torch.int32)
ROWS = torch.zeros(2, 32, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: expert_order(IDS.long(), 4), TypeError, "expert_order: ids must be int32, not int64"),
        (lambda: expert_order(IDS, 0), ValueError, "experts must be at least 1 and at most 4095, not 0"),
        (lambda: expert_order(IDS.T, 4), ValueError, "ids must be contiguous"),
        (lambda: _call(rows=torch.zeros(4)), TypeError, "expert_linear: rows must be int32, not float32"),
        (lambda: _call(offsets=torch.zeros(3, dtype=torch.int32)), ValueError, r"offsets must have the shape \[4\]"),
        (lambda: _call(weight=torch.zeros(3, 32, 16, dtype=torch.int8)), ValueError, "weight must have the shape"),
        (lambda: _call(weight=torch.zeros(3, 32, 32)), TypeError, "weight must be int8, not float32"),
        (
            lambda: _call(weight=torch.zeros(3 * 32 * 32 + 1, dtype=torch.int8)[1:].view(3, 32, 32)),
            ValueError,
            "weight must start at a multiple of 2 bytes of its storage, not at 1",
        ),
        (lambda: _call(weight_scales=torch.zeros(3, 16, 2, dtype=torch.uint8)), ValueError, "weight has o = 32"),
        (lambda: combine(ROWS, ROWS, torch.zeros(2, dtype=torch.int32), 0), ValueError, "topk must be at least 1"),
        (lambda: combine(ROWS, ROWS, IDS[0], 2), ValueError, "routed must have 4 rows at least, not 2"),
        (lambda: combine(ROWS, ROWS, IDS[:, 0], 1), ValueError, "order must be contiguous"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
