"""Reference of the index logits (model_spec 3.5, 3.6): float64 sums of exact products, row by row."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import dequantize

Keys = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Values [width, 64] and scales [width, 4] of a row's columns, and which columns have a key [width]."""
Find = Callable[[int, torch.Tensor, torch.Tensor], Keys]
"""(row, its entries [width], which of them it sees) -> their keys."""


@functools.cache
def index_logits(heads: int) -> Kernel:
    """Column c is the key `starts` + c."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        key_scales: torch.Tensor,
        starts: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        _fill(logits, q, q_scales, weights, lengths, _plain(keys, key_scales, starts))

    return run


@functools.cache
def paged_index_logits(heads: int, size: int) -> Kernel:
    """Column c is at c % size of the block that the row's table has at c / size."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        values: torch.Tensor,
        scales: torch.Tensor,
        tables: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        _fill(logits, q, q_scales, weights, lengths, _paged(values, scales, tables))

    return run


@functools.cache
def candidate_index_logits(heads: int, block_size: int) -> Kernel:
    """As `index_logits`; columns are the entries of the row's blocks."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        key_scales: torch.Tensor,
        starts: torch.Tensor,
        blocks: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        _fill(logits, q, q_scales, weights, lengths, _plain(keys, key_scales, starts), blocks, block_size)

    return run


@functools.cache
def paged_candidate_index_logits(heads: int, block_size: int, size: int) -> Kernel:
    """As `paged_index_logits`; columns are the entries of the row's blocks."""

    def run(
        q: torch.Tensor,
        q_scales: torch.Tensor,
        weights: torch.Tensor,
        values: torch.Tensor,
        scales: torch.Tensor,
        tables: torch.Tensor,
        blocks: torch.Tensor,
        lengths: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        _fill(logits, q, q_scales, weights, lengths, _paged(values, scales, tables), blocks, block_size)

    return run


def _plain(keys: torch.Tensor, key_scales: torch.Tensor, starts: torch.Tensor) -> Find:
    def find(row: int, entries: torch.Tensor, seen: torch.Tensor) -> Keys:
        key = entries + starts[row]
        there = seen & (key >= 0) & (key < len(keys))
        key = key.masked_fill(~there, 0)
        return _at(keys, key), _at(key_scales, key), there

    return find


def _paged(values: torch.Tensor, scales: torch.Tensor, tables: torch.Tensor) -> Find:
    blocks, size, pages = *values.shape[:2], tables.shape[1]

    def find(row: int, entries: torch.Tensor, seen: torch.Tensor) -> Keys:
        there = seen & (entries < pages * size)
        entry = entries.masked_fill(~there, 0)
        block = _at(tables[row], entry // size).long()
        there &= (block >= 0) & (block < blocks)
        block = block.masked_fill(~there, 0)
        return _at(values, block, entry % size), _at(scales, block, entry % size), there

    return find


def _at(tensor: torch.Tensor, *index: torch.Tensor) -> torch.Tensor:
    """tensor[index], or zeros where it is empty."""
    if tensor.numel():
        return tensor[index]
    return torch.zeros((len(index[0]), *tensor.shape[len(index) :]), dtype=tensor.dtype, device=tensor.device)


def _fill(
    logits: torch.Tensor,
    q: torch.Tensor,
    q_scales: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    find: Find,
    blocks: torch.Tensor | None = None,
    block_size: int = 1,
) -> None:
    columns = torch.arange(logits.shape[1], device=logits.device)
    for row in range(len(logits)):
        entries, chosen = columns, torch.ones_like(columns, dtype=torch.bool)
        if blocks is not None:
            block = blocks[row].long().repeat_interleave(block_size)
            entries, chosen = block * block_size + columns % block_size, block >= 0
        values, scales, there = find(row, entries, chosen & (entries < lengths[row]))
        products = dequantize(q[row], q_scales[row]).double() @ dequantize(values, scales).double().T
        sums = (products.clamp_min(0) * weights[row].double()[:, None]).sum(0)
        logits[row] = sums.float().masked_fill(~there, -torch.inf)
