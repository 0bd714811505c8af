"""`rotary`: heads rotated by position, and attention's output rotated back and quantised (model_spec 3.0, 3.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.config import parse_config
from deepinfer.config.rope import frequencies
from deepinfer.loading.dequantize import fp8_rows
from deepinfer.loading.tiny import tiny_config
from deepinfer.ops.case import Case
from deepinfer.ops.execution import run
from deepinfer.ops.fused_transform import RopeArgs, fused_norm_rope_hadamard_cast_store_kvcache
from deepinfer.ops.rotary import rotate, rotate_heads_quantize
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


def _turned(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, inverse: bool) -> torch.Tensor:
    """Row by row, in double, as products of complex numbers."""
    result = x.double()
    for row, position in enumerate(positions.tolist()):
        if 0 <= position < len(table):
            turn = torch.complex(*table[position].double().chunk(2))
            pairs = torch.view_as_complex(x[row, :, -64:].double().unflatten(-1, (32, 2)).contiguous())
            result[row, :, -64:] = torch.view_as_real(pairs * (turn.conj() if inverse else turn)).flatten(-2)
    return result


def _of_pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each value, the length of its pair, and whether both of the pair are finite."""
    pairs = x.double().unflatten(-1, (-1, 2))
    finite = pairs.isfinite().all(-1, keepdim=True).expand_as(pairs)
    return pairs.norm(dim=-1, keepdim=True).expand_as(pairs).flatten(-2), finite.flatten(-2)


@small_cases("rotary")
def test_reference_against_complex_numbers(case: Case) -> None:
    call = case.call()
    x, positions, table = (one.value for one in call.arguments[:3])
    inverse = case.factory == "rotate_heads_quantize" or call.parameters[0]
    expected = _turned(x, positions, table, inverse)
    length, finite = _of_pairs(x)
    results = run(case.factory, call, "reference", "cpu").results
    if case.factory == "rotate":
        error, allowed = (results["out"].double() - expected).abs(), expected.abs() * 2.0**-8 + length * 2.0**-22
        assert (error <= allowed)[finite].all()
        kept, found = (one[..., :-64].contiguous().view(torch.int16) for one in (x, results["out"]))
        assert found.equal(kept)
        return
    found, scales = results["values"].view(x.shape), results["scales"].view(*x.shape[:2], 16)
    unit = 2.0 ** (scales.double() - 127)
    error = (fp8_rows(found, scales) - expected).abs()
    # Half a step of e4m3, at the value or the smallest one, and what float32 lost before.
    allowed = expected.abs() * 2.0**-4 + unit.repeat_interleave(32, -1) * 2.0**-10 + length * 2.0**-20
    assert (error <= allowed)[finite].all()
    largest = torch.where(finite, expected.abs(), 0).unflatten(-1, (16, 32)).amax(-1).clamp_min(1e-4)
    whole = finite.unflatten(-1, (16, 32)).all(-1)
    tight = (448 * unit >= largest * (1 - 2.0**-20)) & (224 * unit < largest * (1 + 2.0**-20))
    assert tight[whole].all()


@small_cases("rotary")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("rotary")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _table(rows: int) -> torch.Tensor:
    angles = torch.arange(rows).float()[:, None] * frequencies(parse_config(tiny_config()).rope, compressed=True)
    return torch.cat((angles.cos(), angles.sin()), -1)


def _heads(n: int, h: int, d: int) -> torch.Tensor:
    return torch.randn(n, h, d, generator=torch.Generator().manual_seed(5))


def test_interface() -> None:
    x, table, positions = _heads(6, 2, 128).bfloat16(), _table(40), torch.tensor([0, 7, 39, 40, -1, 3])
    turned = rotate(x, positions, table)
    assert turned.shape == x.shape and turned is not x
    assert turned[[0, 3, 4]].equal(x[[0, 3, 4]]) and not turned[1].equal(x[1])
    assert rotate(x, positions.int(), table).equal(turned)
    back = rotate(turned, positions, table, inverse=True)
    assert (back.float() - x.float()).abs().max() <= 2.0**-7 * x.float().abs().max()
    same = x.clone()
    assert rotate(same, positions, table, out=same) is same and same.equal(turned)
    assert rotate(x[:0], positions[:0], table).shape == (0, 2, 128)
    values, scales = rotate_heads_quantize(_heads(3, 4, 512), torch.arange(3), table, 2)
    assert values.shape == (3, 2, 1024) and values.dtype == torch.float8_e4m3fn
    assert scales.shape == (3, 2, 32) and scales.dtype == torch.uint8
    empty = rotate_heads_quantize(_heads(0, 4, 512), torch.arange(0), table, 4)
    assert empty[0].shape == (0, 4, 512) and empty[1].shape == (0, 4, 16)


@pytest.mark.parametrize("inverse", [False, True])
def test_a_rotated_head_has_the_bits_of_the_fused_transform(inverse: bool) -> None:
    x, table, positions = _heads(9, 3, 128).bfloat16(), _table(30), torch.arange(9) * 3
    rope = RopeArgs(positions, table, 64, is_neox=False, conjugate=inverse)
    expected = fused_norm_rope_hadamard_cast_store_kvcache(x, rope_args=rope)
    assert rotate(x, positions, table, inverse=inverse).equal(expected)


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    o, table, positions = _heads(70, 4, 512), _table(80), torch.arange(70) + 5
    values, scales = rotate_heads_quantize(o, positions, table, 2)
    for row in (0, 33, 69):
        one, sizes = rotate_heads_quantize(o[row : row + 1], positions[row : row + 1], table, 2)
        assert one[0].view(torch.uint8).equal(values[row].view(torch.uint8)) and sizes[0].equal(scales[row])


X, HEADS, P, T = torch.zeros(2, 3, 128).bfloat16(), torch.zeros(2, 4, 512), torch.zeros(2).int(), torch.zeros(5, 64)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: rotate(X.float(), P, T), TypeError, "rotate: x must be bfloat16, not float32"),
        (lambda: rotate(X[..., :62], P, T), ValueError, "an even number of at least 64 columns, not 62"),
        (lambda: rotate(X[..., :127], P, T), ValueError, "not 127"),
        (lambda: rotate(X.transpose(1, 2), P, T), ValueError, "the last dimension of x must be contiguous"),
        (lambda: rotate(X, P.float(), T), TypeError, "positions must be int32 or int64, not float32"),
        (lambda: rotate(X, P[:1], T), ValueError, "x has n = 2"),
        (lambda: rotate(X, P, T[:, :32]), ValueError, r"cos_sin must have the shape \[\*, 64\]"),
        (lambda: rotate(X, P, T, out=X[:1]), ValueError, "x has n = 2"),
        (lambda: rotate(X, P, T, out=X.as_strided(X.shape, (128, 256, 1))), ValueError, "out must have x's strides"),
        (lambda: rotate_heads_quantize(HEADS.bfloat16(), P, T, 2), TypeError, "o must be float32, not bfloat16"),
        (lambda: rotate_heads_quantize(HEADS[..., :256], P, T, 2), ValueError, r"o must have the shape \[n, h, 512\]"),
        (lambda: rotate_heads_quantize(HEADS, P, T, 3), ValueError, r"a multiple of 3 heads \(groups\), not 4"),
        (lambda: rotate_heads_quantize(HEADS, P, T, 0), ValueError, "groups must be at least 1, not 0"),
        (lambda: rotate_heads_quantize(HEADS, P, T.to("meta"), 2), ValueError, "all must be on one device"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
