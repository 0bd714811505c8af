"""Cases of the index logits (model_spec 3.5, 3.6)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from deepinfer.ops.case import Argument, Call, Case, Judge, Results
from deepinfer.ops.cases import paged
from deepinfer.ops.cases.noise import noise
from deepinfer.ops.formats import FP4_INDEX_KV_FORMAT
from deepinfer.ops.tolerance import Tolerance, difference

TOLERANCE = Tolerance(absolute=5e-4, relative=2**-16)
"""Sums of the heads' parts, of about 100 in size, in float32 and in another order."""


def cases() -> list[Case]:
    """Partial tiles, rows of several sequences, keys and blocks that are not there, and the sizes of the model."""
    return [*_plain_cases(), *_paged_cases(), *_candidate_cases()]


def codes(generator: torch.Generator, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random e2m1 int8 [..., 64] and scales uint8 [..., 4] from 1/8 to 1/2."""
    values = torch.randint(-128, 128, (*shape, 64), generator=generator, dtype=torch.int8)
    return values, torch.randint(124, 127, (*shape, 4), generator=generator, dtype=torch.uint8)


def _queries(generator: torch.Generator, n: int, heads: int, same: bool = False) -> list[Argument]:
    q, q_scales = codes(generator, n, heads)
    weights = noise(generator, (n, heads), torch.bfloat16)
    if same:
        q, q_scales, weights = (one[:1].repeat(n, *[1] * (one.dim() - 1)) for one in (q, q_scales, weights))
    return [Argument("q", q), Argument("q_scales", q_scales), Argument("weights", weights)]


def _lengths(generator: torch.Generator, n: int, most: int, first: tuple[int, ...]) -> Argument:
    """`first`, then random ones."""
    lengths = torch.randint(0, most + 1, (n,), generator=generator, dtype=torch.int32)
    lengths[: len(first)] = torch.tensor(first, dtype=torch.int32)[:n]
    return Argument("lengths", lengths)


def _logits(n: int, width: int) -> Argument:
    storage = torch.full((n, -(-width // 16) * 16), 77.0)
    return Argument("logits", storage[:, :width], output=True, tolerance=TOLERANCE)


def _keys(generator: torch.Generator, keys: int, starts: list[int]) -> list[Argument]:
    values, scales = codes(generator, keys)
    first = Argument("starts", torch.tensor(starts, dtype=torch.int32))
    return [Argument("keys", values), Argument("key_scales", scales), first]


def _cache(generator: torch.Generator, n: int, blocks: int, size: int, pages: int) -> list[Argument]:
    """A cache in a larger buffer; tables of random blocks inside of a wider table, some of them none."""
    cache = paged.cache(FP4_INDEX_KV_FORMAT, blocks, size, generator=generator)
    assert cache.quantized_data is not None and cache.sf_data is not None
    # In place: scales of sane sizes instead of random bytes.
    cache.sf_data.bitwise_and_(1).add_(125)
    tables = torch.randint(0, blocks, (n, pages + 3), generator=generator, dtype=torch.int32)[:, :pages]
    if n > 1 and pages > 1:
        tables[1, 0], tables[1, 1] = -1, blocks
    return [Argument("values", cache.quantized_data), Argument("scales", cache.sf_data), Argument("tables", tables)]


def _blocks(generator: torch.Generator, n: int, count: int, there: int) -> Argument:
    """Ascending blocks below `there`, -1 at the end; the second row's are in no order, with -1 between them."""
    chosen = torch.full((n, count + 8), -1, dtype=torch.int32)[:, :count]
    for row in range(n):
        some = torch.randperm(there, generator=generator)[: max(count - 3 * row, 0)].int()
        chosen[row, : len(some)] = some if row == 1 else some.sort().values
    if n > 1 and count:
        chosen[1, ::3] = -1
        chosen[1, -1] = 2**31 - 1
    return Argument("blocks", chosen)


def _twins(expected: Results, got: Results) -> str:
    """Rows are alike: they have the same bits wherever they stand."""
    return difference("rows that are alike", got["logits"][:1].expand_as(got["logits"]), got["logits"])


def _plain(
    generator: torch.Generator,
    *,
    n: int,
    heads: int,
    keys: int,
    width: int,
    starts: tuple[int, ...] = (0,),
    lengths: tuple[int, ...] = (),
    twins: bool = False,
) -> Call:
    """Rows begin at `starts`, as many at each; the last one takes what remains."""
    each = max(n // len(starts), 1)
    begin = [starts[min(row // each, len(starts) - 1)] for row in range(n)]
    judge: Judge | None = _twins if twins else None
    arguments = [
        *_queries(generator, n, heads, twins),
        *_keys(generator, keys, begin),
        _lengths(generator, n, width, (width,) * n if twins else lengths),
        _logits(n, width),
    ]
    return Call(arguments, (heads,), judge=judge)


def _plain_cases() -> list[Case]:
    small: dict[str, dict[str, Any]] = {
        "one-row": {"n": 1, "heads": 32, "keys": 200, "width": 200, "lengths": (150,)},
        "no-rows": {"n": 0, "heads": 32, "keys": 20, "width": 40},
        "no-columns": {"n": 3, "heads": 32, "keys": 20, "width": 0},
        "no-keys": {"n": 3, "heads": 32, "keys": 0, "width": 20, "lengths": (20, 3)},
        "edges": {"n": 7, "heads": 32, "keys": 300, "width": 290, "lengths": (0, -4, 1, 128, 129, 290, 10**6)},
        "sequences": {"n": 19, "heads": 32, "keys": 330, "width": 140, "starts": (0, 140, 200)},
        "alternating": {"n": 5, "heads": 12, "keys": 330, "width": 140, "starts": (3, 90, 3, 90, 3)},
        "beyond": {"n": 6, "heads": 8, "keys": 99, "width": 140, "starts": (-20, 60, 2**31 - 9), "lengths": (140,)},
        "one-head": {"n": 3, "heads": 1, "keys": 50, "width": 50},
        "many-heads": {"n": 3, "heads": 64, "keys": 150, "width": 150, "starts": (0, 7)},
        "twins": {"n": 19, "heads": 32, "keys": 70, "width": 66, "twins": True},
    }  # fmt: skip
    found = [Case("index_logits", f"plain-{name}", partial(_plain, **given)) for name, given in small.items()]
    model = partial(_plain, heads=32, starts=(0, 1000))
    found.append(Case("index_logits", "plain-model", partial(model, n=5, keys=1304, width=304), engine=True))
    for n, keys, width in ((2048, 16384, 15384), (256, 2**20, 2**20 - 1000), (7, 40000, 33333)):
        found.append(
            Case("index_logits", f"plain-model-{n}-{width}", partial(model, n=n, keys=keys, width=width), large=True)
        )
    return found


def _of_pages(
    generator: torch.Generator,
    *,
    n: int,
    heads: int,
    size: int,
    blocks: int,
    pages: int,
    width: int,
    lengths: tuple[int, ...] = (),
) -> Call:
    arguments = [
        *_queries(generator, n, heads),
        *_cache(generator, n, blocks, size, pages),
        _lengths(generator, n, width, lengths),
        _logits(n, width),
    ]
    return Call(arguments, (heads, size))


def _paged_cases() -> list[Case]:
    small: dict[str, dict[str, Any]] = {
        "one-row": {"n": 1, "heads": 8, "size": 64, "blocks": 5, "pages": 3, "width": 180, "lengths": (170,)},
        "no-rows": {"n": 0, "heads": 32, "size": 64, "blocks": 5, "pages": 3, "width": 180},
        "no-pages": {"n": 2, "heads": 32, "size": 64, "blocks": 5, "pages": 0, "width": 18, "lengths": (18, 3)},
        "edges": {"n": 5, "heads": 32, "size": 16, "blocks": 40, "pages": 18, "width": 300, "lengths": (300, 288, 0)},
        "many-heads": {"n": 2, "heads": 64, "size": 128, "blocks": 3, "pages": 2, "width": 256},
    }  # fmt: skip
    found = [Case("paged_index_logits", f"paged-{name}", partial(_of_pages, **given)) for name, given in small.items()]
    for size in (64, 128):
        model = partial(_of_pages, heads=32, size=size)
        near = partial(model, n=3, blocks=9, pages=5, width=5 * size, lengths=(5 * size, 200))
        found.append(Case("paged_index_logits", f"paged-model-{size}", near, engine=True))
        for n, pages in ((64, 512), (2, 2**20 // size)):
            far = partial(model, n=n, blocks=9000, pages=pages, width=pages * size)
            found.append(Case("paged_index_logits", f"paged-model-{size}-{n}-{pages}-pages", far, large=True))
    return found


def _of_blocks(
    generator: torch.Generator,
    *,
    n: int,
    heads: int,
    count: int,
    block_size: int,
    entries: int,
    size: int = 0,
    starts: tuple[int, ...] = (0,),
    lengths: tuple[int, ...] = (),
) -> Call:
    """size: entries of a block of the cache; 0 for keys in a row."""
    if size:
        keys = _cache(generator, n, entries // size + 3, size, -(-entries // size))
    else:
        keys = _keys(generator, entries, [starts[row % len(starts)] for row in range(n)])
    arguments = [
        *_queries(generator, n, heads),
        *keys,
        _blocks(generator, n, count, -(-entries // block_size)),
        _lengths(generator, n, entries, (entries, *lengths)),
        _logits(n, count * block_size),
    ]
    return Call(arguments, (heads, block_size, size) if size else (heads, block_size))


def _candidate_cases() -> list[Case]:
    small: dict[str, dict[str, Any]] = {
        "one-row": {"n": 1, "heads": 8, "count": 20, "block_size": 8, "entries": 333},
        "no-rows": {"n": 0, "heads": 32, "count": 20, "block_size": 8, "entries": 333},
        "no-blocks": {"n": 2, "heads": 32, "count": 0, "block_size": 8, "entries": 100},
        "edges": {"n": 6, "heads": 32, "count": 40, "block_size": 16, "entries": 700, "lengths": (690, 0, -1, 9)},
        "all-there-is": {"n": 2, "heads": 12, "count": 30, "block_size": 8, "entries": 203},
    }
    found = []
    for name, given in small.items():
        found.append(
            Case("candidate_index_logits", f"candidates-{name}", partial(_of_blocks, **given, starts=(0, 5, -3)))
        )
        found.append(
            Case("paged_candidate_index_logits", f"paged-candidates-{name}", partial(_of_blocks, **given, size=64))
        )
    model = partial(_of_blocks, heads=32, block_size=8)
    for factory, word, size in (
        ("candidate_index_logits", "candidates", 0),
        ("paged_candidate_index_logits", "paged-candidates", 128),
    ):
        near = partial(model, n=3, count=48, entries=640, size=size)
        found.append(Case(factory, f"{word}-model", near, engine=True))
        for n, entries in ((512, 65536), (3, 2**20)):
            far = partial(model, n=n, count=2048, entries=entries, size=size)
            found.append(Case(factory, f"{word}-model-{n}-{entries}", far, large=True))
    return found
