"""The n-gram memory's kernels in Triton (model_spec 3.10)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.quantize import narrow, reciprocal, widen

_STREAMS = tl.constexpr(4)


@triton.jit(do_not_specialize=["tokens"])
def _engram_rows(
    ngrams, multipliers, primes, offsets, rows, tokens,
    LENGTH: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    own = token < tokens
    column = tl.arange(0, WIDTH)[None, :]
    inside = column < COLUMNS
    # The tokens that a column's hash is of, less two.
    order = column // (COLUMNS // (LENGTH - 1))
    newest = tl.load(ngrams + token * LENGTH, mask=own, other=0).to(tl.int64)
    total = newest * tl.load(multipliers)
    hashed = tl.zeros([TOKENS, WIDTH], tl.int64)
    for back in tl.static_range(1, LENGTH):
        gram = tl.load(ngrams + token * LENGTH + back, mask=own, other=0).to(tl.int64)
        total = total ^ (gram * tl.load(multipliers + back))
        hashed = tl.where(order == back - 1, total, hashed)
    prime = tl.load(primes + column, mask=inside, other=1)
    rest = hashed % prime
    row = tl.where(rest < 0, rest + prime, rest) + tl.load(offsets + column, mask=inside, other=0)
    tl.store(rows + token * COLUMNS + column, tl.where(newest == -1, -1, row), mask=own & inside)


@functools.cache
def engram_rows(length: int, columns: int) -> Kernel:
    """Rows of the tables by the hashes of 2 to `length` tokens, `columns` for each token. One launch."""
    width = next_power_of_2(columns)
    tokens = max(256 // width, 1)

    def run(
        ngrams: torch.Tensor, multipliers: torch.Tensor, primes: torch.Tensor, offsets: torch.Tensor, rows: torch.Tensor
    ) -> None:
        count = ngrams.shape[0]
        launch(
            _engram_rows, (cdiv(count, tokens),), ngrams, multipliers, primes, offsets, rows, count,
            LENGTH=length, COLUMNS=columns, TOKENS=tokens, WIDTH=width, num_warps=4,
        )  # fmt: skip

    return run


@triton.jit(do_not_specialize=["picks", "known"])
def _engram_gather(
    table, table_scales, rows, values, scales, picks, known,
    WIDTH: tl.constexpr, PICKS: tl.constexpr, BYTES: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    pick = tl.program_id(0).to(tl.int64) * PICKS + tl.arange(0, PICKS)[:, None]
    own = pick < picks
    row = tl.load(rows + pick, mask=own, other=-1)
    live = (row >= 0) & (row < known)
    row = tl.where(live, row, 0)
    byte = tl.arange(0, BYTES)[None, :]
    inside = byte < WIDTH
    value = tl.load(table + row * WIDTH + byte, mask=live & inside, other=0)
    tl.store(values + pick * WIDTH + byte, value, mask=own & inside)
    group = tl.arange(0, SCALES)[None, :]
    inside = group < WIDTH // 32
    scale = tl.load(table_scales + row * (WIDTH // 32) + group, mask=live & inside, other=0)
    tl.store(scales + pick * (WIDTH // 32) + group, scale, mask=own & inside)


@functools.cache
def engram_gather(width: int) -> Kernel:
    """Rows of the table and of its scales, zeros where there is no such row. One launch, 16 bytes a thread and turn."""
    columns = next_power_of_2(width)
    picks = max(4096 // columns, 1)

    def run(
        table: torch.Tensor, table_scales: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, scales: torch.Tensor
    ) -> None:
        count = rows.numel()
        launch(
            _engram_gather, (cdiv(count, picks),), table.view(torch.uint8), table_scales, rows,
            values.view(torch.uint8), scales, count, table.shape[0],
            WIDTH=width, PICKS=picks, BYTES=columns, SCALES=columns // 32, num_warps=4,
        )  # fmt: skip

    return run


@triton.jit
def _root(total, eps, D: tl.constexpr):
    return reciprocal(tl.sqrt_rn(total * (1.0 / D) + eps))


@triton.jit(do_not_specialize=["eps", "scale"])
def _engram_gate(
    trunk, kv, gains, skip, out, eps, scale,
    D: tl.constexpr, SKIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1)
    at = (row * _STREAMS + stream) * D
    keys = kv + (row * (_STREAMS + 1) + stream) * D
    values = kv + (row * (_STREAMS + 1) + _STREAMS) * D
    column = tl.arange(0, BLOCK)
    dot = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    key_squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        own = start + column < D
        value = widen(tl.load(trunk + at + start + column, mask=own, other=0.0))
        key = widen(tl.load(keys + start + column, mask=own, other=0.0))
        dot += value * key * tl.load(gains + stream * D + start + column, mask=own, other=0.0)
        squares += value * value
        key_squares += key * key
    total = tl.sum(tl.reshape(dot, (1, BLOCK)), axis=1)
    root = _root(tl.sum(tl.reshape(squares, (1, BLOCK)), axis=1), eps, D)
    t = total * root * _root(tl.sum(tl.reshape(key_squares, (1, BLOCK)), axis=1), eps, D) * scale
    size = tl.abs(t)
    size = tl.sqrt_rn(tl.where(size < 1e-6, 1e-6, size))
    signed = tl.where(t.to(tl.int32, bitcast=True) < 0, -size, size)
    gate = reciprocal(1.0 + tl.exp(-signed))
    if SKIP:
        gate = tl.where(tl.load(skip + row) != 0, 0.0, gate)
    for start in range(0, D, BLOCK):
        own = start + column < D
        kept = tl.load(trunk + at + start + column, mask=own, other=0.0)
        added = narrow(widen(kept) + gate * widen(tl.load(values + start + column, mask=own, other=0.0)))
        if SKIP:
            added = tl.where(tl.load(skip + row) != 0, kept, added)
        tl.store(out + at + start + column, added, mask=own)


@functools.cache
def engram_gate(width: int, eps: float) -> Kernel:
    """The memory's value added to every stream through its gate.

    One launch, a program for each stream of a row: it reads the stream twice, the second time from the cache. Sums
    run over fixed columns in a fixed order, so a row's result is the same in any batch.
    """
    block = min(next_power_of_2(width), 1024)

    def run(
        trunk: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, skip: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        flags = None if skip is None else skip.view(torch.uint8)
        launch(
            _engram_gate, (trunk.shape[0], 4), trunk, kv, gains, flags, out, eps, width**-0.5,
            D=width, SKIP=flags is not None, BLOCK=block, num_warps=max(block // 256, 1),
        )  # fmt: skip

    return run
