"""Attention over chosen keys in Triton (model_spec 3.3, 3.7, 4.2).

A program has a row and 64 of its heads, and goes through the row's keys once: a tile of keys is read, dequantised in
registers where it comes from a cache, and serves as keys and as values. Prefill and decode are one kernel, which sees
`kv` as a cache of one block in bfloat16: the same keys in the same columns give the same bits.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import V41_FORMAT, KVCacheFormat
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.product import WARPS, operand
from deepinfer.ops.triton.quantize import decode, decode_e4m3, decode_ue8m0, narrow, spread

_WIDTH = tl.constexpr(512)
_HEADS = 64
_KEYS = 64
_STAGES = 3
"""One for a tile's list of entries, one for the entries, one for the products."""
_LOG2_E = 1.4426950408889634
_NONE = tl.constexpr(-1e30)
"""Below every logit; finite, so that differences of it are numbers."""


@triton.jit
def _keys(cache, entry, seen, size, block_stride, FMT: tl.constexpr, KEYS: tl.constexpr):
    """The entries of a cache, dequantised, as an operand [KEYS, 512]; zeros where they are not seen."""
    block = entry // size
    at = cache + (block.to(tl.int64) * block_stride)[:, None]
    place = (entry - block * size).to(tl.int64)[:, None]
    if FMT == "bf16":
        column = tl.arange(0, _WIDTH)[None, :]
        return operand(tl.load(at + place * _WIDTH + column, mask=seen[:, None], other=0.0))
    else:
        BYTES: tl.constexpr = _WIDTH if FMT == "e4m3" else _WIDTH // 2
        GROUP: tl.constexpr = 32 if FMT == "e4m3" else 16
        at += place * (BYTES + _WIDTH // GROUP)
        codes = tl.load(at + tl.arange(0, BYTES)[None, :], mask=seen[:, None], other=0)
        scales = tl.load(at + BYTES + tl.arange(0, _WIDTH // GROUP)[None, :], mask=seen[:, None], other=0)
        numbers = decode_ue8m0(scales) if FMT == "e4m3" else decode_e4m3(scales)
        # The product is exact in bfloat16 too, and takes half the registers there.
        return operand(decode(codes, FMT, KEYS, _WIDTH)) * spread(operand(numbers), KEYS, _WIDTH, GROUP)


@triton.jit
def _over(
    q, sums, total, largest, indices, width, cache, end, size, block_stride, scale,
    FMT: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Go on with sums, total and largest over the keys of one list, up to the last that is one."""
    every = tl.arange(0, COLUMNS)
    listed = tl.load(indices + every, mask=every < width, other=-1)
    last = tl.max(tl.where(listed >= 0, every + 1, 0), axis=0)
    for start in range(0, last, KEYS):
        column = start + tl.arange(0, KEYS)
        entry = tl.load(indices + column, mask=column < width, other=-1)
        seen = (entry >= 0) & (entry < end)
        keys = _keys(cache, entry, seen, size, block_stride, FMT, KEYS)
        z = tl.where(seen[None, :], tl.dot(q, tl.trans(keys)) * scale, float("-inf"))
        larger = tl.maximum(largest, tl.max(z, axis=1))
        weights = tl.exp2(z - larger[:, None])
        faded = tl.exp2(largest - larger)
        total = total * faded + tl.sum(weights, axis=1)
        sums = tl.dot(operand(narrow(weights)), keys, sums * faded[:, None])
        largest = larger
    return sums, total, largest


@triton.jit(
    do_not_specialize=["heads", *(f"{name}{one}" for name in ("width", "row", "end", "size") for one in (1, 2))]
)
def _attend(
    q, sink, out, heads, scale, log2_e,
    cache1, indices1, width1, row1, end1, size1, stride1,
    cache2, indices2, width2, row2, end2, size2, stride2,
    FMT1: tl.constexpr, FMT2: tl.constexpr, COLUMNS1: tl.constexpr, COLUMNS2: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    # Logits count in powers of two: `scale` and the sink are multiplied by log2(e).
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = head < heads
    at = (row * heads + head)[:, None] * _WIDTH + tl.arange(0, _WIDTH)[None, :]
    queries = operand(tl.load(q + at, mask=live[:, None], other=0.0))
    sums = tl.zeros([HEADS, _WIDTH], tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    largest = tl.full([HEADS], _NONE, tl.float32)
    sums, total, largest = _over(
        queries, sums, total, largest, indices1 + row * row1, width1, cache1, end1, size1, stride1, scale,
        FMT1, COLUMNS1, KEYS,
    )  # fmt: skip
    if FMT2 != "":
        sums, total, largest = _over(
            queries, sums, total, largest, indices2 + row * row2, width2, cache2, end2, size2, stride2, scale,
            FMT2, COLUMNS2, KEYS,
        )  # fmt: skip
    total += tl.exp2(tl.load(sink + head, mask=live, other=0.0) * log2_e - largest)
    # 0 where there are neither keys nor a sink; an endless sink leaves nothing to the keys.
    share = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    tl.store(out + at, sums * share[:, None], mask=live[:, None])


class _Set(NamedTuple):
    """A list of entries [n, k] and the cache that they are in: [blocks, size, ...] in this format."""

    indices: torch.Tensor
    cache: torch.Tensor
    form: str

    def sizes(self) -> tuple[int, ...]:
        """Width and row stride of the list; entries, entries a block and block stride of the cache."""
        blocks, size = self.cache.shape[:2]
        return self.indices.shape[1], self.indices.stride(0), blocks * size, max(size, 1), self.cache.stride(0)

    def columns(self) -> int:
        return next_power_of_2(self.indices.shape[1])


def _launch(
    q: torch.Tensor, first: _Set, second: _Set | None, sink: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    rows, heads, _ = q.shape
    other = (None, None, 0, 0, 0, 1, 0) if second is None else (second.cache, second.indices, *second.sizes())
    launch(
        _attend, (rows, cdiv(heads, _HEADS)), q, sink, out, heads, scale * _LOG2_E, _LOG2_E,
        first.cache, first.indices, *first.sizes(), *other,
        FMT1=first.form, FMT2="" if second is None else second.form,
        COLUMNS1=first.columns(), COLUMNS2=1 if second is None else second.columns(),
        HEADS=_HEADS, KEYS=_KEYS, num_warps=WARPS, num_stages=_STAGES, enable_fp_fusion=False,
    )  # fmt: skip


@functools.cache
def sparse_attention_prefill(window: int, scale: float) -> Kernel:
    """Attention over rows of kv, the first `window` columns of the lists being a set of their own."""

    def run(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sink: torch.Tensor, out: torch.Tensor) -> None:
        cache = kv[None]
        second = _Set(indices[:, window:], cache, "bf16") if indices.shape[1] > window else None
        _launch(q, _Set(indices[:, :window], cache, "bf16"), second, sink, scale, out)

    return run


@functools.cache
def sparse_attention_decode(layout: KVCacheFormat | None, scale: float) -> Kernel:
    """Attention over entries of the window's cache and of another one of this format, None for no other."""

    def run(
        q: torch.Tensor,
        swa_cache: torch.Tensor,
        swa_indices: torch.Tensor,
        cache: torch.Tensor | None,
        indices: torch.Tensor | None,
        sink: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        second = None
        if layout is not None and cache is not None and indices is not None:
            second = _Set(indices, cache, layout.quantized_dtype or "")
        _launch(q, _Set(swa_indices, swa_cache, V41_FORMAT.quantized_dtype or ""), second, sink, scale, out)

    return run
