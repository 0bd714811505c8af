"""`sparse_mla`: attention over chosen keys (model_spec 3.3, 3.7, 4.2)."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.config.parse import parse_config
from deepinfer.loading.tiny import tiny_config
from deepinfer.ops.case import Case
from deepinfer.ops.cases.sparse_mla import ERROR, SCALE, entries
from deepinfer.ops.dispatch import using
from deepinfer.ops.formats import V41_FORMAT, V41_FP4_FORMAT, KVCacheFormat
from deepinfer.ops.load_paged_kv_cache import load_paged_kv_cache
from deepinfer.ops.sparse_mla import sparse_attention_decode, sparse_attention_prefill
from deepinfer.ops.tolerance import as_bits
from deepinfer.reference.attention import Attention
from deepinfer.reference.precision import Precision
from deepinfer.reference.weights import Weights
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases


@small_cases("sparse_mla")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("sparse_mla")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def _drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _lists(seen: torch.Tensor) -> torch.Tensor:
    """The columns that each row sees, in order, -1 behind them."""
    width = seen.shape[1]
    columns = torch.where(seen, torch.arange(width), width).sort(-1).values
    return columns.masked_fill(columns == width, -1).int()


@pytest.mark.parametrize("precision", [Precision(), Precision(rounded=False)], ids=["rounded", "ideal"])
def test_reference_against_the_oracle(precision: Precision) -> None:
    n, h, t = 9, 4, 60
    q, kv, sink = 3 * _drawn(n, h, 512).bfloat16(), _drawn(t, 512, seed=2).bfloat16(), _drawn(h, seed=3)
    seen = _drawn(n, t, seed=4) > 0.3
    seen[4] = False
    oracle = Attention(
        parse_config(tiny_config()), precision, Weights({"a.attn.attn_sink": sink}, torch.float64), 0, "a"
    )
    expected = oracle.attend(q.double(), kv.double(), seen)
    with using("reference"):
        found = sparse_attention_prefill(q, kv, _lists(seen), sink, SCALE)
    assert not found[4].any()
    bound = ERROR / 2 * kv.abs().max().item() if not precision.rounded else 1e-6
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=bound)


def _decoded(cache: torch.Tensor, layout: KVCacheFormat, entry: int) -> list[float]:
    """One entry of a cache, from its bytes."""
    token = cache[entry // cache.shape[1], entry % cache.shape[1], 0].tolist()
    if layout is V41_FORMAT:
        return [_e4m3(token[i]) * 2.0 ** (token[512 + i // 32] - 127) for i in range(512)]
    codes = [code for byte in token[:256] for code in (byte & 15, byte >> 4)]
    sizes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    return [sizes[code & 7] * (-1) ** (code >> 3) * _e4m3(token[256 + i // 16]) for i, code in enumerate(codes)]


def _e4m3(byte: int) -> float:
    power, part = byte >> 3 & 15, byte & 7
    size = part * 2.0**-9 if power == 0 else (8 + part) * 2.0 ** (power - 10)
    return -size if byte >> 7 else size


def _loop(q: torch.Tensor, keys: list[list[float]], sink: float) -> list[float]:
    if not keys:
        return [0.0] * len(q)
    z = [math.fsum(a * b for a, b in zip(q.tolist(), key, strict=True)) * SCALE for key in keys]
    weights = [math.exp(one - max(z)) for one in z]
    total = math.fsum(weights) + math.exp(sink - max(z))
    return [math.fsum(w * key[d] for w, key in zip(weights, keys, strict=True)) / total for d in range(len(q))]


@pytest.mark.parametrize("layout", [V41_FORMAT, V41_FP4_FORMAT, None], ids=["fp8", "fp4", "window"])
def test_reference_of_decode_against_a_loop_over_bytes(layout: KVCacheFormat | None) -> None:
    generator = torch.Generator().manual_seed(5)
    q, sink = 2 * _drawn(3, 2, 512).bfloat16(), _drawn(2)
    swa = entries(generator, V41_FORMAT, 2, 7)
    window = torch.tensor([[0, 13, 5], [-1, 14, 3], [-1, -1, -5]], dtype=torch.int32)
    cache = None if layout is None else entries(generator, layout, 3, 4)
    chosen = torch.tensor([[11, 2], [-1, 4], [12, -1]], dtype=torch.int32)
    listed = None if layout is None else chosen
    with using("reference"):
        found = sparse_attention_decode(q, swa, window, cache, listed, sink, SCALE)
    for row in range(3):
        keys = [_decoded(swa, V41_FORMAT, one) for one in window[row].tolist() if 0 <= one < 14]
        if layout is not None and cache is not None:
            keys += [_decoded(cache, layout, one) for one in chosen[row].tolist() if 0 <= one < 12]
        for head in range(2):
            expected = torch.tensor(_loop(q[row, head].double(), keys, sink[head].item()))
            torch.testing.assert_close(found[row, head], expected, rtol=ERROR, atol=4 * ERROR / 2)


@functools.cache
def _both(device: str, n: int = 7, h: int = 64) -> dict[str, Any]:
    """The same keys for prefill, as rows, and for decode, in caches."""
    generator = torch.Generator().manual_seed(9)
    swa, cache = entries(generator, V41_FORMAT, 3, 134), entries(generator, V41_FP4_FORMAT, 12, 64)
    window = torch.randint(0, 3 * 134, (n, 128), generator=generator, dtype=torch.int32)
    chosen = torch.randint(0, 12 * 64, (n, 512), generator=generator, dtype=torch.int32)
    window[1, 40:], chosen[1, 3:], chosen[2] = -1, -1, -1
    kv = torch.cat((_rows(swa), _rows(cache)))
    indices = torch.cat((window, torch.where(chosen < 0, -1, chosen + 3 * 134)), 1)
    given = {
        "q": 3 * torch.randn(n, h, 512, generator=generator).bfloat16(),
        "swa": swa,
        "window": window,
        "cache": cache,
        "chosen": chosen,
        "kv": kv,
        "indices": indices,
        "sink": torch.randn(h, generator=generator),
    }
    return {name: one.to(device) for name, one in given.items()}


def _rows(cache: torch.Tensor) -> torch.Tensor:
    """Every entry of a cache, as prefill loads them: bfloat16 [entries, 512]."""
    blocks, size = cache.shape[:2]
    segments = torch.tensor([(block, 0, size, block * size) for block in range(blocks)], dtype=torch.int32)
    with using("reference"):
        rows = load_paged_kv_cache(cache, segments, blocks * size).bf16_data
    assert rows is not None
    return rows


def _decode(one: dict[str, Any], rows: slice = slice(None)) -> torch.Tensor:
    return sparse_attention_decode(
        one["q"][rows], one["swa"], one["window"][rows], one["cache"], one["chosen"][rows], one["sink"], SCALE
    )


def _prefill(one: dict[str, Any], rows: slice = slice(None)) -> torch.Tensor:
    return sparse_attention_prefill(one["q"][rows], one["kv"], one["indices"][rows], one["sink"], SCALE, window=128)


def test_prefill_and_decode_agree() -> None:
    one = _both("cpu")
    with using("reference"):
        assert as_bits(_decode(one)).equal(as_bits(_prefill(one)))


@pytest.mark.gpu
def test_a_row_has_the_same_bits_alone_in_any_batch_and_from_prefill() -> None:
    one = _both("cuda")
    with using("triton"):
        whole = _decode(one)
        assert as_bits(_prefill(one)).equal(as_bits(whole))
        for row in range(len(whole)):
            alone = slice(row, row + 1)
            assert as_bits(_decode(one, alone)[0]).equal(as_bits(whole[row]))
            assert as_bits(_prefill(one, alone)[0]).equal(as_bits(whole[row]))


def test_interpreted_bits_do_not_depend_on_how_rows_are_divided() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ops.sparse_mla_interpreted"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("rows", "programs", "expected"),
    [
        (1, 132, (1, 64)),
        (16, 132, (2, 64)),
        (17, 132, (2, 128)),
        (33, 132, (3, 128)),
        (34, 132, (4, 256)),
        (66, 132, (5, 256)),
        (67, 132, (10, 512)),
        (300, 132, (10, 512)),
        (39, 78, (5, 256)),
        (40, 78, (10, 512)),
        (0, 132, (1, 64)),
    ],
)
def test_rows_are_divided_as_far_as_all_programs_run_at_once(
    rows: int, programs: int, expected: tuple[int, int]
) -> None:
    pytest.importorskip("triton")
    from deepinfer.ops.triton.sparse_mla_decode import _division

    assert _division(rows, 10, programs) == expected


@pytest.mark.gpu
def test_many_rows_have_the_bits_of_prefill_and_of_rows_alone() -> None:
    one = _both("cuda", n=300)
    with using("triton"):
        whole = _decode(one)
        assert as_bits(_prefill(one)).equal(as_bits(whole))
        for few in (slice(7, 8), slice(120, 140), slice(250, 300)):
            assert as_bits(_decode(one, few)).equal(as_bits(whole[few]))


@pytest.mark.gpu
@pytest.mark.parametrize("programs", [1, 14, 28, 56, 10_000])
def test_bits_do_not_depend_on_how_rows_are_divided(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.ops.triton import sparse_mla_decode

    one = _both("cuda")
    with using("triton"):
        expected = _prefill(one)
        monkeypatch.setattr(sparse_mla_decode, "multiprocessors", lambda device: programs)
        assert as_bits(_decode(one)).equal(as_bits(expected))


def test_a_row_with_nan_spoils_no_other() -> None:
    one = dict(_both("cpu"))
    with using("reference"):
        expected = _prefill(one)
        one["q"] = one["q"].clone()
        one["q"][3, 5, 7] = torch.nan
        found = _prefill(one)
    assert found[3, 5].isnan().all()
    found[3, 5] = expected[3, 5]
    assert found.equal(expected)


Q, KV, SINK = torch.zeros(3, 4, 512, dtype=torch.bfloat16), torch.zeros(9, 512, dtype=torch.bfloat16), torch.zeros(4)
INDICES, SWA = torch.zeros(3, 8, dtype=torch.int32), torch.zeros(2, 5, 1, 528, dtype=torch.uint8)
FP4 = torch.zeros(2, 5, 1, 288, dtype=torch.uint8)
PREFILL, DECODE = sparse_attention_prefill, sparse_attention_decode


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: PREFILL(Q.float(), KV, INDICES, SINK, 1.0), TypeError, "prefill: q must be bfloat16, not float32"),
        (lambda: PREFILL(Q[..., :256], KV, INDICES, SINK, 1.0), ValueError, "q must have the shape"),
        (lambda: PREFILL(Q, KV[::2], INDICES, SINK, 1.0), ValueError, "kv must be contiguous"),
        (lambda: PREFILL(Q, KV, INDICES.long(), SINK, 1.0), TypeError, "indices must be int32"),
        (lambda: PREFILL(Q, KV, INDICES[:2], SINK, 1.0), ValueError, "indices has the shape"),
        (lambda: PREFILL(Q, KV, INDICES.T[:3], SINK, 1.0), ValueError, "last dimension of indices"),
        (lambda: PREFILL(Q, KV, INDICES[:, :1].expand(3, 16385).contiguous(), SINK, 1.0), ValueError, "16384 columns"),
        (lambda: PREFILL(Q, KV, INDICES, SINK[:3], 1.0), ValueError, "sink has the shape"),
        (lambda: PREFILL(Q, KV, INDICES, SINK, math.inf), ValueError, "scale must be finite"),
        (lambda: PREFILL(Q, KV, INDICES, SINK, 1.0, window=9), ValueError, "window must be at least 0 and at most 8"),
        (lambda: PREFILL(Q, KV.to("meta"), INDICES, SINK, 1.0), ValueError, "all must be on one device"),
        (lambda: DECODE(Q, SWA.int(), INDICES, None, None, SINK, 1.0), TypeError, "swa_cache must be uint8"),
        (lambda: DECODE(Q, FP4, INDICES, None, None, SINK, 1.0), ValueError, "swa_cache must have the shape"),
        (lambda: DECODE(Q, SWA[:, ::2], INDICES, None, None, SINK, 1.0), ValueError, "tokens must be dense"),
        (lambda: DECODE(Q, SWA, INDICES, FP4, None, SINK, 1.0), ValueError, "indices goes with cache"),
        (lambda: DECODE(Q, SWA, INDICES, FP4[..., :68], INDICES, SINK, 1.0), ValueError, "288 or 528 bytes"),
        (lambda: DECODE(Q, SWA, INDICES, FP4, INDICES[:1], SINK, 1.0), ValueError, "indices has the shape"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_no_rows_and_no_columns() -> None:
    assert PREFILL(Q[:0], KV, INDICES[:0], SINK, 1.0).shape == (0, 4, 512)
    with using("reference"):
        assert not PREFILL(Q, KV, INDICES[:, :0], SINK, 1.0).any()
        assert not DECODE(Q, SWA, INDICES[:, :0], FP4, INDICES[:, :0], SINK, 1.0).any()
