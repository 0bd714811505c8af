"""`select_state_slice_tl` and `load_state_to_cache_tl` in Triton (kernel_spec A.16)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2

_TYPES = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_TILE = 1024
"""Words of 8 bytes a program copies."""


@triton.jit
def _place(begin, step, ring, ONCE: tl.constexpr):
    """(begin + step) modulo ring, of a begin in the ring. ONCE: no step goes further than once around."""
    place = begin + step
    if ONCE:
        return tl.where(place >= ring, place - ring, place)
    else:
        return place % ring


@triton.jit(do_not_specialize=["source_begin", "target_begin", "source_ring", "target_ring", "count"])
def _copy_ring(
    source, target, source_begin, target_begin, source_ring, target_ring, count, width,
    source_layer, source_row, target_layer, target_row,
    ONCE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(1).to(tl.int64)
    step = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (step < count)[:, None] & (column < width)
    come_from = layer * source_layer + _place(source_begin, step, source_ring, ONCE).to(tl.int64) * source_row
    go_to = layer * target_layer + _place(target_begin, step, target_ring, ONCE).to(tl.int64) * target_row
    value = tl.load(source + come_from[:, None] + column, mask=inside)
    tl.store(target + go_to[:, None] + column, value, mask=inside)


@functools.cache
def select_state_slice_tl(
    block_size_kvstore: int, block_size_inference: int, num_layers: int, feature_dim: int
) -> Kernel:
    """state_tensor[:, t % Bi] = state_cache[:, t % Bk] for t in [p - Bi, p)."""

    def run(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        _copy(state_cache, state_tensor, last_hit_position - block_size_inference, block_size_inference)

    return run


@functools.cache
def load_state_to_cache_tl(
    block_size_kvstore: int,
    block_size_inference: int,
    num_layers: int,
    feature_dim: int,
    vec: int | None = None,
    threads: int = 256,
) -> Kernel:
    """state_cache[:, t % Bk] = state_tensor[:, t % Bi] for t in [p - Bi, p); other rows stay. Needs Bk >= Bi.

    vec and threads are TileLang's; the width of a copy follows from the tensors here.
    """

    def run(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        _copy(state_tensor, state_cache, last_hit_position - block_size_inference, block_size_inference)

    return run


def _copy(source: torch.Tensor, target: torch.Tensor, begin: int, count: int) -> None:
    word = _widest(source, target)
    source, target = source.view(word), target.view(word)
    layers, width = source.shape[0], source.shape[2]
    columns = min(next_power_of_2(width), _TILE)
    rows = max(_TILE // columns, 1)
    rings = (source.shape[1], target.shape[1])
    launch(
        _copy_ring, (cdiv(count, rows), layers, cdiv(width, columns)),
        source, target, begin % rings[0], begin % rings[1], *rings, count, width,
        *source.stride()[:2], *target.stride()[:2],
        ONCE=count <= min(rings), ROWS=rows, COLUMNS=columns,
    )  # fmt: skip


def _widest(*tensors: torch.Tensor) -> torch.dtype:
    """The widest integer that the rows, strides and addresses of all of them are whole multiples of."""
    facts = [fact for x in tensors for fact in (x.shape[2], *x.stride()[:2], x.storage_offset(), x.data_ptr())]
    return _TYPES[next(width for width in _TYPES if all(fact % width == 0 for fact in facts))]
