"""`gate_topk` (model_spec 3.9)."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.gate import gate_topk
from deepinfer.reference.layers import route
from deepinfer.reference.precision import Precision
from deepinfer.reference.weights import Weights
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("gate")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("gate")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_reference_against_a_loop() -> None:
    logits, bias, of_images = 3 * _drawn(9, 20), _drawn(20, seed=2), _drawn(20, seed=3)
    logits[0, 3] = 31.0
    is_image = torch.arange(9) % 3 == 1
    with using("reference"):
        ids, weights = gate_topk(logits, bias, of_images, is_image, 4, 1.5, torch.arange(9) != 5)
    for row in range(9):
        if row == 5:
            assert ids[row].tolist() == [-1] * 4 and weights[row].tolist() == [0.0] * 4
            continue
        scores = [math.sqrt(z if z > 20 else math.log1p(math.exp(z))) for z in logits[row].tolist()]
        added = (of_images if is_image[row] else bias).tolist()
        best = sorted(range(20), key=lambda e, s=scores, b=added: (-(s[e] + b[e]), e))[:4]
        total = sum(scores[e] for e in best)
        assert ids[row].tolist() == best
        assert weights[row].tolist() == pytest.approx([scores[e] / total * 1.5 for e in best], rel=1e-6)


@pytest.mark.parametrize("precision", [Precision(), Precision(rounded=False)], ids=["rounded", "ideal"])
def test_reference_against_the_oracle(precision: Precision) -> None:
    y, gate, bias = _drawn(33, 64).bfloat16(), _drawn(48, 64, seed=2).bfloat16() / 8, 0.1 * _drawn(48, seed=3)
    w = Weights({"ffn.gate.weight": gate, "ffn.gate.bias": bias}, torch.float64)
    routing, expected = route(precision, y.double(), w, "ffn", 6, None)
    with using("reference"):
        ids, weights = gate_topk((y.double() @ gate.double().T).float(), bias, None, None, 6, 1.5)
    assert ids.long().equal(routing.ids)
    torch.testing.assert_close(weights.double(), expected * 1.5, rtol=1e-5, atol=1e-9)


def test_ties_go_to_the_lower_id_and_the_bias_only_ranks() -> None:
    logits = torch.zeros(2, 8)
    bias = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    with using("reference"):
        ids, weights = gate_topk(logits, bias, None, None, 4, 2.0)
    assert ids.tolist() == [[2, 4, 0, 1]] * 2
    assert weights.tolist() == [[pytest.approx(0.5)] * 4] * 2


def test_rows_of_nan_choose_experts_that_exist() -> None:
    logits = _drawn(3, 16)
    logits[1] = torch.nan
    with using("reference"):
        ids, weights = gate_topk(logits, torch.zeros(16), None, None, 3, 1.5)
        alone, _ = gate_topk(logits[::2].contiguous(), torch.zeros(16), None, None, 3, 1.5)
    assert ids[1].tolist() == [0, 1, 2] and weights[1].isnan().all()
    assert ids[::2].equal(alone) and not weights[::2].isnan().any()


LOGITS, BIAS, FLAGS = torch.zeros(3, 8), torch.zeros(8), torch.zeros(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((LOGITS.double(), BIAS, None, None, 2, 1.0), TypeError, "gate_topk: logits must be float32, not float64"),
        ((LOGITS.T, BIAS[:3], None, None, 2, 1.0), ValueError, "logits must be contiguous"),
        ((LOGITS, BIAS[:7], None, None, 2, 1.0), ValueError, "bias has the shape"),
        ((LOGITS, BIAS, BIAS, None, 2, 1.0), ValueError, "bias_image goes with is_image"),
        ((LOGITS, BIAS, BIAS, FLAGS.int(), 2, 1.0), TypeError, "is_image must be bool"),
        ((LOGITS, BIAS, None, None, 9, 1.0), ValueError, "topk must be at least 1 and at most 8, not 9"),
        ((LOGITS, BIAS, None, None, 0, 1.0), ValueError, "topk must be at least 1"),
        ((LOGITS, BIAS, None, None, 2, 1.0, FLAGS[:2]), ValueError, "valid has the shape"),
        ((LOGITS, BIAS.to("meta"), None, None, 2, 1.0), ValueError, "all must be on one device"),
        ((LOGITS[:, :0], BIAS[:0], None, None, 2, 1.0), ValueError, "1 to 4096 experts, not 0"),
    ],
)
def test_refused(arguments: tuple, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gate_topk(*arguments)
