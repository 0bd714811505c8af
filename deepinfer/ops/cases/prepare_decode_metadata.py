"""Cases of `prepare_v4_decode_metadata_tl` and `copy_block_tables_tl` (kernel_spec A.7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from deepinfer.ops.case import Argument, Call, Case

Ratios = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_SETS: dict[str, Ratios] = {
    "2-2-2": ((2,), (2,), (2,)),
    "12-none-12": ((1, 2), (), (1, 2)),
    "1-none-1": ((1,), (), (1,)),
    "12-1-2": ((1, 2), (1,), (2,)),
}
"""(all compressed, dense, sparse) ratios; the model has 1 and 2, both sparse."""


@dataclass(frozen=True)
class Batch:
    """Sequences of a decode step and their block tables."""

    seqlens_q: torch.Tensor
    seqlens_k: torch.Tensor
    cu_seqlens_q: torch.Tensor
    tables: torch.Tensor
    offsets: torch.Tensor
    states: torch.Tensor
    placeholders: torch.Tensor


def _batch(
    generator: torch.Generator, r: int, max_seqlen_q: int, base: int, block_size: int, placeholders: int, blocks: int
) -> Batch:
    """`placeholders` of the sequences are placeholders: one row, one cached token, one block."""

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.int32, generator=generator)

    lengths = whole(1, max_seqlen_q + 1, r)
    cached = torch.minimum(lengths + base + whole(0, 2 * block_size, r), torch.tensor(blocks * block_size))
    padding = torch.arange(r) >= r - placeholders
    lengths[padding], cached[padding] = 1, 1
    counts = torch.div(cached + block_size - 1, block_size, rounding_mode="floor").int()
    offsets = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    states = whole(1, 400, r)
    states[padding] = 0
    sums = lengths.cumsum(0, dtype=torch.int32)
    return Batch(lengths, cached.int(), sums, whole(0, 50000, int(offsets[-1])), offsets, states, padding)


def _prepare(
    generator: torch.Generator, *, r: int, max_seqlen_q: int, base: int, ratios: str, placeholders: int, blocks: int,
    window: int, ring: int, extra: int, rows_missing: int, block_size: int = 128, force: bool = False,
) -> Call:  # fmt: skip
    given = _batch(generator, r, max_seqlen_q, base, block_size, placeholders, blocks)
    q = (int(given.cu_seqlens_q[-1]) if r else 0) - rows_missing
    ca, dense, sparse = _SETS[ratios]

    def junk(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, 1 if dtype == torch.bool else 77, dtype=dtype)

    def stacked(count: int, *last: int) -> torch.Tensor:
        """Rows of q + extra entries cut out of longer ones."""
        return junk(max(count, 1), q + extra + 3, *last)[:, : q + extra]

    arguments = [
        Argument("seqlens_q", given.seqlens_q),
        Argument("seqlens_k", given.seqlens_k),
        Argument("cu_seqlens_q", given.cu_seqlens_q),
        Argument("block_tables_in", given.tables),
        Argument("block_tables_offsets", given.offsets),
        Argument("state_block_idx_in", given.states),
        Argument("is_placeholder", given.placeholders),
        Argument("positions", junk(q), output=True),
        Argument("valid_token_mask", junk(q, dtype=torch.bool), output=True),
        Argument("gate_force_random", junk(q, dtype=torch.bool), output=True),
        Argument("fix_routing_mask", junk(q, dtype=torch.bool), output=True),
        Argument("context_lens", junk(q), output=True),
        Argument("klen", stacked(len(sparse)), output=True),
        Argument("kv_ca_index_offset_len", stacked(len(dense), 2), output=True),
        Argument("kv_swa_index_offset_len", junk(q, 2), output=True),
        Argument("slot_mapping_store_swa", junk(q), output=True),
        Argument("query_indices", junk(q), output=True),
        Argument("state_block_idx_out", junk(q), output=True),
        Argument("positions_c", stacked(len(ca)), output=True),
        Argument("slot_mapping_store_ca", stacked(len(ca)), output=True),
    ]
    return Call(arguments, (max_seqlen_q, blocks, window, ring, block_size, force, ca, dense, sparse))


def _copy(
    generator: torch.Generator, *, r: int, max_seqlen_q: int, base: int, placeholders: int, blocks: int,
    rows_missing: int, block: int = 1024,
) -> Call:  # fmt: skip
    given = _batch(generator, r, max_seqlen_q, base, 128, placeholders, blocks)
    q = (int(given.cu_seqlens_q[-1]) if r else 0) - rows_missing
    arguments = [
        Argument("seqlens_q", given.seqlens_q),
        Argument("cu_seqlens_q", given.cu_seqlens_q),
        Argument("block_tables_in", given.tables),
        Argument("block_tables_offsets", given.offsets),
        Argument("block_tables_out", torch.full((q, blocks + 2), 77, dtype=torch.int32)[:, :blocks], output=True),
    ]
    return Call(arguments, (max_seqlen_q, blocks, block))


def cases() -> list[Case]:
    """1 to 34 rows a sequence, lengths around a block and the window, padded graphs, rows that do not fit."""
    found = []
    window = {"window": 4096, "ring": 8192}
    model = {"window": 128, "ring": 134, "blocks": 8256}
    short = {"window": 7, "ring": 9, "blocks": 8}
    for name, ratios, r, max_seqlen_q, base, options in (
        ("model", "12-none-12", 60, 6, 127, model),
        ("model-padded", "12-none-12", 8, 6, 30, {"placeholders": 3, **model}),
        ("one-row", "2-2-2", 200, 1, 31, {"blocks": 64, **window}),
        ("mixed", "12-1-2", 50, 5, 200, {"blocks": 64, "extra": 64, **window}),
        ("ring", "1-none-1", 70, 8, 0, short),
        ("34-rows", "12-none-12", 5, 34, 255, short),
        ("forced", "2-2-2", 9, 2, 9, {"force": True, **short}),
        ("cut", "12-1-2", 30, 5, 9, {"rows_missing": 7, **short}),
        ("none", "12-1-2", 0, 5, 9, short),
        ("large", "12-1-2", 1024, 8, 255, {"blocks": 1024, "placeholders": 99, **window}),
        ("large-1", "1-none-1", 1024, 1, 127, {"blocks": 4096, **window}),
    ):
        large, engine = name.startswith("large"), name.startswith("model")
        sizes = {"ratios": ratios, "r": r, "max_seqlen_q": max_seqlen_q, "base": base}
        defaults = {"placeholders": 0, "extra": 0, "rows_missing": 0}
        make = partial(_prepare, **{**defaults, **sizes, **options})  # type: ignore[arg-type]
        found.append(Case("prepare_v4_decode_metadata_tl", f"prepare-{name}", make, large=large, engine=engine))
    for index, (base, ratios) in enumerate(product((30, 31, 127, 200, 255), ("2-2-2", "12-none-12", "1-none-1"))):
        sizes = {"r": 1024, "max_seqlen_q": (1, 5, 8)[index % 3], "base": base, "ratios": ratios, "rows_missing": 0}
        options = {
            "placeholders": index % 2 * 200,
            "extra": index % 4 * 32,
            "blocks": (1024, 4096)[index % 2],
            **window,
        }
        make = partial(_prepare, **{**sizes, **options})  # type: ignore[arg-type]
        found.append(Case("prepare_v4_decode_metadata_tl", f"prepare-1024-{base}-{ratios}", make, large=True))
    for name, options, large, engine in (
        ("model", {"r": 5, "max_seqlen_q": 6, "base": 9000, "blocks": 8256, "placeholders": 2}, False, True),
        ("two-pieces", {"r": 4, "max_seqlen_q": 3, "base": 1100 * 128, "blocks": 1500}, False, False),
        ("odd", {"r": 9, "max_seqlen_q": 5, "base": 2000, "blocks": 17, "block": 8}, False, False),
        ("full", {"r": 3, "max_seqlen_q": 2, "base": 10**6, "blocks": 33}, False, False),
        ("cut", {"r": 9, "max_seqlen_q": 5, "base": 2000, "blocks": 33, "rows_missing": 6}, False, False),
        ("none", {"r": 0, "max_seqlen_q": 5, "base": 0, "blocks": 33}, False, False),
        ("large", {"r": 1024, "max_seqlen_q": 8, "base": 100000, "blocks": 4096, "placeholders": 9}, True, False),
    ):
        defaults = {"placeholders": 0, "rows_missing": 0}
        make = partial(_copy, **{**defaults, **options})  # type: ignore[arg-type]
        found.append(Case("copy_block_tables_tl", f"copy-{name}", make, large=large, engine=engine))
    return found
