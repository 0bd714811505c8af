"""`TRITON_INTERPRET=1 python -m tests.ops.sparse_mla_interpreted`: attention's bits, however rows are divided.

Prints one line a check that fails, and exits with 1 if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy
import torch
import triton
import triton.language as tl

from deepinfer.ops.cases.sparse_mla import SCALE, entries
from deepinfer.ops.dispatch import using
from deepinfer.ops.formats import V41_FORMAT, V41_FP4_FORMAT
from deepinfer.ops.launch import launch
from deepinfer.ops.load_paged_kv_cache import load_paged_kv_cache
from deepinfer.ops.sparse_mla import sparse_attention_decode, sparse_attention_prefill
from deepinfer.ops.tolerance import as_bits
from deepinfer.ops.triton import softmax_step, sparse_mla_decode

HEADS = 70
WINDOW = 128
DIVISIONS = [(1, 128), (4, 256), (99, 64), (1, 512)]
"""Tiles that a program has, of the six there are, and columns of values; with all 512 a row is left whole."""
Given = dict[str, torch.Tensor]


def _given() -> Given:
    """Six rows over a window and chosen entries: all keys, holes, one list alone, either, no key, and a NaN."""
    generator = torch.Generator().manual_seed(11)
    caches = {"swa": entries(generator, V41_FORMAT, 2, 134), "cache": entries(generator, V41_FP4_FORMAT, 4, 64)}
    window = torch.randint(0, 2 * 134, (6, WINDOW), generator=generator, dtype=torch.int32)
    chosen = torch.randint(0, 4 * 64, (6, 200), generator=generator, dtype=torch.int32)
    window[1, 3::7], chosen[1, 64:128], window[2], chosen[3], window[4], chosen[4] = -1, -1, -1, -1, -1, -1
    q = 3 * torch.randn(6, HEADS, 512, generator=generator).bfloat16()
    q[5, 66, 9] = torch.nan
    return {
        **caches,
        "q": q,
        "window": window,
        "chosen": chosen,
        "kv": torch.cat([_rows(one) for one in caches.values()]),
        "indices": torch.cat((window, torch.where(chosen < 0, -1, chosen + 2 * 134)), 1),
        "sink": torch.randn(HEADS, generator=generator),
    }


def _rows(cache: torch.Tensor) -> torch.Tensor:
    blocks, size = cache.shape[:2]
    segments = torch.tensor([(block, 0, size, block * size) for block in range(blocks)], dtype=torch.int32)
    with using("reference"):
        rows = load_paged_kv_cache(cache, segments, blocks * size).bf16_data
    assert rows is not None
    return rows


def _decode(of: Given, rows: slice = slice(None), division: tuple[int, int] | None = None) -> torch.Tensor:
    """Decode as it is divided by itself, or so."""
    own: Any = sparse_mla_decode._division
    with mock.patch.object(sparse_mla_decode, "_division", own if division is None else lambda *_: division):
        return sparse_attention_decode(
            of["q"][rows], of["swa"], of["window"][rows], of["cache"], of["chosen"][rows], of["sink"], SCALE
        )


def divisions() -> Iterator[tuple[str, bool]]:
    """Decode divided in any way, a row alone, and prefill."""
    of = _given()
    whole = _decode(of)
    for division in DIVISIONS:
        yield f"divided {division}", as_bits(_decode(of, division=division)).equal(as_bits(whole))
    for row in (1, 3, 5):
        alone = _decode(of, slice(row, row + 1))
        yield f"row {row} alone", as_bits(alone[0]).equal(as_bits(whole[row]))
    prefill = sparse_attention_prefill(of["q"], of["kv"], of["indices"], of["sink"], SCALE, window=WINDOW)
    yield "prefill", as_bits(prefill).equal(as_bits(whole))
    yield "a row without a key is 0", not whole[4].any()
    spoilt = whole.isnan().any(-1).nonzero().tolist()
    yield f"NaN in its own head alone, not in {spoilt}", spoilt == [[5, 66]] and bool(whole[5, 66].isnan().all())


def _product(a: Any, b: Any, **given: Any) -> Any:
    """What a tensor core's product is and NumPy's is not: the same for a column, whatever columns are beside it."""
    return (a.astype(numpy.float64) @ b.astype(numpy.float64)).astype(numpy.float32)


@triton.jit
def _step(z, keys, totals, out, KEYS: tl.constexpr):
    at = tl.arange(0, KEYS)
    sums, total, largest = softmax_step.start(1, KEYS)
    tile = tl.load(z + at)[None, :]
    square = tl.load(keys + at[:, None] * KEYS + at[None, :])
    for _ in range(2):
        sums, total, largest = softmax_step.step(sums, total, largest, tile, square)
    tl.store(totals + tl.arange(0, 1), total)
    tl.store(out + at[None, :], softmax_step.finish(sums, total, largest, tl.full([1], float("-inf"), tl.float32)))


def orders() -> Iterator[tuple[str, bool]]:
    """The weights' total has the same bits in any order of a tile's keys, and is right."""
    generator = torch.Generator().manual_seed(12)
    z = 6 * torch.randn(64, generator=generator)
    z[5] = -torch.inf
    expected = 2 * torch.exp2(z.double() - z.max()).sum()
    totals = torch.zeros(5)
    for at in range(5):
        out, order = torch.zeros(64), torch.randperm(64, generator=generator)
        launch(_step, (1,), z[order], torch.eye(64), totals[at : at + 1], out, KEYS=64, enable_fp_fusion=False)
        share = 2 * torch.exp2(z.double() - z.max())[order] / expected
        yield f"weights of order {at}", torch.allclose(out.double(), share, rtol=2**-8, atol=2**-23)
    yield "the total of any order", bool((as_bits(totals) == as_bits(totals)[0]).all())
    yield "the total", abs(float(totals[0] - expected)) < 130 * 2**-24


def main(checks: tuple[Callable[[], Iterator[tuple[str, bool]]], ...] = (divisions, orders)) -> int:
    wrong = [name for check in checks for name, right in check() if not right]
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    with using("triton"), mock.patch.object(numpy, "matmul", _product):
        sys.exit(main())
