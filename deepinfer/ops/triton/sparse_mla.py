"""Attention over chosen keys in Triton (model_spec 3.3, 3.7, 4.2): the kernel of prefill.

A program has a row and 64 of its heads, and goes through the row's keys once: a tile of keys is read, and serves as
keys and as values. Decode (`sparse_mla_decode`) reads keys from caches, and divides rows further where they are few;
its tiles are the same, and the same keys in the same columns give the same bits.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import V41_FORMAT, KVCacheFormat
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton import softmax_step, sparse_mla_decode
from deepinfer.ops.triton.product import WARPS, operand
from deepinfer.ops.triton.softmax_step import LOG2_E
from deepinfer.ops.triton.sparse_mla_decode import HEADS, KEYS, Set

_WIDTH = tl.constexpr(512)
_STAGES = 3
"""One for a tile's list of entries, one for the entries, one for the products."""


@triton.jit
def _over(q, sums, total, largest, indices, width, kv, end, scale, COLUMNS: tl.constexpr, KEYS: tl.constexpr):
    """Go on with sums, total and largest over the keys of one list, up to the last that is one."""
    every = tl.arange(0, COLUMNS)
    listed = tl.load(indices + every, mask=every < width, other=-1)
    last = tl.max(tl.where(listed >= 0, every + 1, 0), axis=0)
    for start in range(0, last, KEYS):
        column = start + tl.arange(0, KEYS)
        entry = tl.load(indices + column, mask=column < width, other=-1)
        seen = (entry >= 0) & (entry < end)
        at = kv + entry.to(tl.int64)[:, None] * _WIDTH + tl.arange(0, _WIDTH)[None, :]
        keys = operand(tl.load(at, mask=seen[:, None], other=0.0))
        z = tl.where(seen[None, :], tl.dot(q, tl.trans(keys)) * scale, float("-inf"))
        sums, total, largest = softmax_step.step(sums, total, largest, z, keys)
    return sums, total, largest


@triton.jit(do_not_specialize=["heads", "width1", "width2", "row", "end"])
def _attend(
    q, sink, out, heads, scale, log2_e, kv, end, indices1, width1, indices2, width2, row,
    COLUMNS1: tl.constexpr, COLUMNS2: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    # Logits count in powers of two: `scale` and the sink are multiplied by log2(e).
    own = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = head < heads
    at = (own * heads + head)[:, None] * _WIDTH + tl.arange(0, _WIDTH)[None, :]
    queries = operand(tl.load(q + at, mask=live[:, None], other=0.0))
    sums, total, largest = softmax_step.start(HEADS, _WIDTH)
    sums, total, largest = _over(
        queries, sums, total, largest, indices1 + own * row, width1, kv, end, scale, COLUMNS1, KEYS
    )
    if COLUMNS2:
        sums, total, largest = _over(
            queries, sums, total, largest, indices2 + own * row, width2, kv, end, scale, COLUMNS2, KEYS
        )
    sinks = tl.load(sink + head, mask=live, other=0.0) * log2_e
    tl.store(out + at, softmax_step.finish(sums, total, largest, sinks), mask=live[:, None])


@functools.cache
def sparse_attention_prefill(window: int, scale: float) -> Kernel:
    """Attention over rows of kv, the first `window` columns of the lists being a set of their own."""

    def run(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sink: torch.Tensor, out: torch.Tensor) -> None:
        rows, heads, _ = q.shape
        others = indices.shape[1] - window
        launch(
            _attend, (rows, cdiv(heads, HEADS)), q, sink, out, heads, scale * LOG2_E, LOG2_E,
            kv, len(kv), indices, window, indices[:, window:] if others else None, others, indices.stride(0),
            COLUMNS1=next_power_of_2(window), COLUMNS2=next_power_of_2(others) if others else 0,
            HEADS=HEADS, KEYS=KEYS, num_warps=WARPS, num_stages=_STAGES, enable_fp_fusion=False,
        )  # fmt: skip

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
            second = Set(indices, cache, layout.quantized_dtype or "")
        first = Set(swa_indices, swa_cache, V41_FORMAT.quantized_dtype or "")
        sparse_mla_decode.attend(q, first, second, sink, scale, out)

    return run
