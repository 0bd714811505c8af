"""The fused transform of attention rows (kernel_spec A.13)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops import using
from deepinfer.ops.case import Case
from deepinfer.ops.cases.fused_transform import PRODUCTION
from deepinfer.ops.formats import (
    FORMATS,
    FP8_FLOAT32_SF_INDEX_KV_FORMAT,
    MXFP8_INDEX_KV_FORMAT,
    V41_FORMAT,
    V41_FP4_FORMAT,
    KVCacheFormat,
    alloc_kv_cache,
    bf16_format,
)
from deepinfer.ops.fused_transform import (
    CastArgs,
    ContiguousOutArgs,
    HadamardArgs,
    KVCacheOutArgs,
    NormArgs,
    RopeArgs,
)
from deepinfer.ops.fused_transform import fused_norm_rope_hadamard_cast_store_kvcache as transform
from deepinfer.ops.load_paged_kv_cache import load_paged_kv_cache
from deepinfer.ops.norm import norm
from deepinfer.ops.reference.fused_transform import hadamard
from deepinfer.ops.store_kv_cache import store_kv_cache
from tests.ops.narrow import f32, quantise
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("fused_transform")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("fused_transform")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_all_production_configurations_are_cases() -> None:
    assert len(PRODUCTION) == 19 and len(set(PRODUCTION.values())) == 19


def _x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _rope(count: int, rotary: int = 64, **changed: Any) -> RopeArgs:
    angles = torch.arange(40.0)[:, None] * torch.logspace(0, -2, rotary // 2)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    return RopeArgs(torch.arange(count, dtype=torch.int32) * 3, table, rotary, **{"is_neox": False, **changed})


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("neox", [False, True])
def test_rotation_against_complex_numbers(neox: bool, conjugate: bool) -> None:
    x, rope = _x(5, 3, 128), _rope(5, is_neox=neox, conjugate=conjugate)
    with using("reference"):
        found = transform(x, rope_args=rope)
    assert isinstance(found, torch.Tensor) and found[..., :64].equal(x[..., :64])
    tail, half = x[..., 64:].double(), 32
    a, b = (tail[..., :half], tail[..., half:]) if neox else (tail[..., 0::2], tail[..., 1::2])
    table = rope.cos_sin_cache[rope.positions.long()].double()[:, None]
    turn = torch.complex(table[..., :half], -table[..., half:] if conjugate else table[..., half:])
    z = torch.complex(a, b) * turn
    exact = torch.cat((z.real, z.imag), -1) if neox else torch.stack((z.real, z.imag), -1).flatten(-2)
    assert ((found[..., 64:].double() - exact).abs() <= exact.abs() * 2**-8 + 1e-6).all()


def test_one_pair_rounds_as_the_contract_says() -> None:
    """a' = bf16(fma(a, c, -round(b s))), b' = bf16(fma(a, s, round(b c))), each in exact numbers."""
    x, rope = _x(13, 128, seed=3), _rope(13)
    with using("reference"):
        found = transform(x, rope_args=rope)
    assert isinstance(found, torch.Tensor)
    for row, position in enumerate(rope.positions.tolist()):
        for pair in range(32):
            a, b = x[row, 64 + 2 * pair].item(), x[row, 65 + 2 * pair].item()
            c, s = (rope.cos_sin_cache[position, column].item() for column in (pair, 32 + pair))
            first, second = math.fsum((a * c, -f32(b * s))), math.fsum((a * s, f32(b * c)))
            expected = torch.tensor([f32(first), f32(second)]).bfloat16()
            assert found[row, 64 + 2 * pair : 66 + 2 * pair].equal(expected)


def test_a_position_without_a_table_is_not_rotated() -> None:
    x = _x(4, 128)
    rope = _rope(4)
    rope = RopeArgs(torch.tensor([-1, 40, 2**40, 5]), rope.cos_sin_cache, 64, False)
    with using("reference"):
        found = transform(x, rope_args=rope)
    assert isinstance(found, torch.Tensor) and found[:3].equal(x[:3]) and not found[3].equal(x[3])


def test_rotation_and_back() -> None:
    x = _x(6, 2, 512)
    with using("reference"):
        there = transform(x, rope_args=_rope(6))
        assert isinstance(there, torch.Tensor)
        back = transform(there, rope_args=_rope(6, conjugate=True))
    assert isinstance(back, torch.Tensor) and (back.float() - x.float()).abs().max() < 0.05


def test_hadamard_against_the_matrix() -> None:
    matrix = torch.ones(1, 1)
    for _ in range(7):
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    x = torch.randint(-50, 50, (5, 128), generator=torch.Generator().manual_seed(1)).float()
    assert hadamard(x).equal(x @ matrix)
    with using("reference"):
        found = transform(x.bfloat16(), hadamard_args=HadamardArgs(128**-0.5))
    assert isinstance(found, torch.Tensor) and found.equal((x @ matrix * f32(128**-0.5)).bfloat16())


@pytest.mark.parametrize("width", [128, 512])
def test_norm_is_that_of_norm(width: int) -> None:
    x, weight = _x(9, 4, width), _x(width, seed=1)
    with using("reference"):
        assert transform(x, NormArgs(weight, 1e-20)).equal(norm(x, weight, eps=1e-20))  # type: ignore[union-attr]


@pytest.mark.parametrize("layout", FORMATS, ids=lambda layout: layout.note)
def test_storing_is_that_of_store_kv_cache(layout: KVCacheFormat) -> None:
    width = layout.elements
    x, weight = _x(9, width), _x(width, seed=1)
    slots = torch.tensor([3, 17, -1, 8, 31, 32, -5, 0, 16], dtype=torch.int32)
    caches = [alloc_kv_cache(layout, 4, 8) for _ in range(2)]
    for cache in caches:
        cache.fill_(9)
    cast = CastArgs.from_cache_format(layout)
    with using("reference"):
        out = torch.empty_like(x)
        into = KVCacheOutArgs(caches[0], slots, out, layout=layout)
        assert transform(x, NormArgs(weight), _rope(9), None, cast, into) is out
        assert out.equal(transform(x, NormArgs(weight), _rope(9)))  # type: ignore[arg-type]
        store_kv_cache(out, caches[1], slots, layout=layout)
        assert caches[0].equal(caches[1])
        assert transform(x, cast_args=cast, out_args=KVCacheOutArgs(caches[0], slots, layout=layout)) is None


def test_the_stages_of_bfloat16() -> None:
    x, weight, slots = _x(3, 512), _x(512, seed=1), torch.arange(3, dtype=torch.int32)
    cache, cast = alloc_kv_cache(V41_FORMAT, 1, 4), CastArgs.from_cache_format(V41_FORMAT)
    outs = {}
    with using("reference"):
        for stage in ("norm", "transform", "cast_back"):
            out = torch.empty_like(x)
            outs[stage] = transform(x, NormArgs(weight), _rope(3), None, cast, KVCacheOutArgs(cache, slots, out, stage))
        loaded = load_paged_kv_cache(cache, torch.tensor([[0, 0, 3, 0]], dtype=torch.int32), 3).bf16_data
        back = transform(x, NormArgs(weight), _rope(3), None, CastArgs("e4m3", 32, cast_back=True))
        assert outs["norm"].equal(norm(x, weight))  # type: ignore[union-attr]
    assert loaded is not None and outs["cast_back"].equal(loaded) and back.equal(loaded)  # type: ignore[union-attr]


FORMS = [
    CastArgs("e4m3", 32),
    CastArgs("e4m3", 32, sf_format="fp32"),
    CastArgs("e4m3", 128, False, "fp32"),
    CastArgs("e4m3", 32, False, "e4m3"),
    CastArgs("e2m1", 32),
    CastArgs("e2m1", 16, False, "e4m3"),
]


@pytest.mark.parametrize("cast", FORMS, ids=lambda cast: f"{cast.fmt}-{cast.num_per_channels}-{cast.sf_format}")
def test_cast_against_the_oracle(cast: CastArgs) -> None:
    x = _x(4, 2, 128)
    x[1] = 0
    x[2] *= 1000
    with using("reference"):
        result = transform(x, cast_args=cast)
    assert isinstance(result, tuple)
    values, scales = result
    if cast.sf_format == "ue8m0":
        assert scales.dtype == torch.int32 and scales.shape == (4, 2)
    kind = torch.float32 if cast.sf_format == "fp32" else torch.uint8
    steps = scales.reshape(4, 2, -1).contiguous().view(kind).flatten(0, 1).tolist()
    codes = values.view(torch.uint8).flatten(0, 1).tolist()
    for row, found in enumerate(zip(codes, steps, strict=True)):
        numbers = x.flatten(0, 1)[row].float().tolist()
        expected = quantise(numbers, cast.fmt, cast.num_per_channels, cast.sf_format, cast.round_sf)
        assert found == expected


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), exponent=st.integers(-12, 12), fp4=st.booleans())
def test_casting_back_is_idempotent(seed: int, exponent: int, fp4: bool) -> None:
    x = _x(2, 3, 128, seed=seed) * 2.0**exponent
    cast = CastArgs("e2m1" if fp4 else "e4m3", 32, cast_back=True)
    with using("reference"):
        once = transform(x, cast_args=cast)
        assert isinstance(once, torch.Tensor)
        twice = transform(once, cast_args=cast)
    assert isinstance(twice, torch.Tensor) and twice.equal(once)


def test_outputs_that_are_given() -> None:
    x = _x(3, 512)
    with using("reference"):
        out = torch.empty_like(x)
        assert transform(x, out_args=out) is out and out.equal(x)
        quant, sf = torch.empty(3, 512, dtype=torch.float8_e4m3fn), torch.empty(3, 4, dtype=torch.int32)
        result = transform(x, cast_args=CastArgs("e4m3", 32), out_args=ContiguousOutArgs(quant, sf))
        assert isinstance(result, tuple) and result[0] is quant and result[1] is sf
        empty = transform(x[:0], cast_args=CastArgs("e2m1", 32))
        assert isinstance(empty, tuple) and empty[0].shape == (0, 256) and empty[1].shape == (0, 4)
        one = transform(x[:, :128], cast_args=CastArgs("e4m3", 128, False, "fp32"))
        assert isinstance(one, tuple) and one[1].shape == (3,)


X = torch.zeros(2, 512, dtype=torch.bfloat16)
WEIGHT, POSITIONS, TABLE = torch.zeros(512).bfloat16(), torch.zeros(2, dtype=torch.int32), torch.zeros(9, 64)
CACHE, SLOTS = torch.zeros(2, 4, 1, 528, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32)
MXFP8 = CastArgs("e4m3", 32)
INDEX = torch.zeros(2, 4, 1, 132, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("named", "error", "text"),
    [
        ({"x": X.float()}, TypeError, "x must be bfloat16"),
        ({"x": X[:, :256]}, ValueError, "head_dim must be one of 128, 512, not 256"),
        ({"x": X.T}, ValueError, "the last dimension of x must be contiguous"),
        ({"norm_args": NormArgs(WEIGHT[:128])}, ValueError, "weight has the shape"),
        ({"norm_args": NormArgs(WEIGHT.float())}, TypeError, "weight must be bfloat16"),
        ({"rope_args": RopeArgs(POSITIONS[:1], TABLE, 64, False)}, ValueError, "positions has the shape"),
        ({"rope_args": RopeArgs(POSITIONS.short(), TABLE, 64, False)}, TypeError, "positions must be int32 or int64"),
        ({"rope_args": RopeArgs(POSITIONS, TABLE, 32, False)}, ValueError, "cos_sin_cache must have the shape"),
        ({"rope_args": RopeArgs(POSITIONS, TABLE, 63, False)}, ValueError, "rotary_dim must be even"),
        ({"rope_args": RopeArgs(POSITIONS, TABLE, 64, False, 0)}, ValueError, "offset must be 512 - 64"),
        ({"hadamard_args": HadamardArgs()}, ValueError, "hadamard_args needs rows of 128"),
        ({"cast_args": CastArgs("e5m2", 32)}, ValueError, "fmt must be one of"),
        ({"cast_args": CastArgs("e4m3", 32, False)}, ValueError, "round_sf must be True for ue8m0"),
        ({"cast_args": CastArgs("e4m3", 32, True, "e4m3")}, ValueError, "round_sf must be False for e4m3"),
        ({"cast_args": CastArgs("e2m1", 16)}, ValueError, "cast_args for e2m1 must be"),
        ({"cast_args": CastArgs("e4m3", 48)}, ValueError, "num_per_channels must be one of"),
        ({"out_args": X.float()}, TypeError, "out must be bfloat16"),
        ({"out_args": ContiguousOutArgs(None, X)}, ValueError, "cannot take scales"),
        ({"cast_args": MXFP8, "out_args": X}, TypeError, "out must be float8_e4m3fn"),
        ({"out_args": KVCacheOutArgs(CACHE, SLOTS)}, ValueError, "cast_args must be given with a cache"),
        ({"x": X.view(1, 2, 512), "out_args": KVCacheOutArgs(CACHE, SLOTS)}, ValueError, "must have one head"),
        ({"cast_args": MXFP8, "out_args": KVCacheOutArgs(CACHE, SLOTS[:1])}, ValueError, "slot_mapping has the shape"),
        ({"cast_args": MXFP8, "out_args": KVCacheOutArgs(CACHE, SLOTS, None, "end")}, ValueError, "out_stage must be"),
        ({"cast_args": MXFP8, "out_args": KVCacheOutArgs(INDEX, SLOTS)}, ValueError, "must have rows of 128"),
        (
            {"cast_args": MXFP8, "out_args": KVCacheOutArgs(INDEX, SLOTS, layout=FP8_FLOAT32_SF_INDEX_KV_FORMAT)},
            ValueError,
            "cast_args must be those of the cache's format",
        ),
        ({"cast_args": MXFP8, "out_args": KVCacheOutArgs(CACHE, SLOTS, layout=V41_FP4_FORMAT)}, ValueError, "not fit"),
        ({"cast_args": MXFP8, "out_args": KVCacheOutArgs(CACHE[..., :100], SLOTS)}, ValueError, "bytes one of"),
        ({"cast_args": MXFP8, "out_args": KVCacheOutArgs(CACHE.to("meta"), SLOTS)}, ValueError, "on one device"),
    ],
)
def test_refused(named: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        transform(**{"x": X, **named})


def test_a_cast_of_a_cache_that_is_not_quantised() -> None:
    assert CastArgs.from_cache_format(MXFP8_INDEX_KV_FORMAT) == CastArgs("e4m3", 32)
    with pytest.raises(ValueError, match="is not quantised"):
        CastArgs.from_cache_format(bf16_format(128))
