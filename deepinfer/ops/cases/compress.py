"""Cases of the compressor's kernels (kernel_spec A.12)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.tolerance import Tolerance

OUTPUT = Tolerance(absolute=1e-5, relative=2**-7)
"""exp and division are the device's: the float32 result may round to the next bf16. State is exact."""
SLOT = 782_232
"""float32 elements of a state slot of the real model, of which the rings of a layer are a part."""


def cases() -> list[Case]:
    """Chunks that begin inside a window, empty ones, mirrored rows; decode rows that share a slot, padding rows."""
    return [*_prefill_cases(), *_decode_cases()]


def _tokens(generator: torch.Generator, rows: int, dim: int, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Score and latent as columns of one wider buffer, as a fused projection leaves them."""
    both = torch.randn((rows, max(stride, 2 * dim)), generator=generator)
    return both[:, :dim], both[:, dim : 2 * dim]


def _state(generator: torch.Generator, slots: int, ring: int, dim: int, stride: int) -> torch.Tensor:
    """[slots, ring, 2, dim] cut out of wider slots, whose other bytes must stay."""
    stride = max(stride, ring * 2 * dim + 8)
    state = torch.full((slots * stride + 8,), -77.0).as_strided((slots, ring, 2, dim), (stride, 2 * dim, dim, 1), 8)
    return state.copy_(torch.randn((slots, ring, 2, dim), generator=generator))


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _prefill(
    generator: torch.Generator,
    *,
    r: int,
    dim: int,
    ring: int,
    chunks: list[tuple[int, int]],
    mirrored: bool,
    stride: int,
    slot: int,
) -> Call:
    """chunks: (tokens before the chunk, tokens in it) of each sequence."""
    qlens, klens = [new for _, new in chunks], [old + new for old, new in chunks]
    rows = [max(1, (old + new) // r - old // r) for old, new in chunks]
    total = sum(qlens)
    score, latent = _tokens(generator, total + 5 * mirrored, dim, stride)
    mirror = torch.randperm(total + 5, generator=generator)[:total].int() if mirrored else None
    if mirror is not None:
        unused = torch.ones(total + 5, dtype=torch.bool)
        unused[mirror.long()] = False
        score[unused] = latent[unused] = torch.nan
    order = torch.randperm(len(chunks), generator=generator)
    state = _state(generator, len(chunks) + 1, ring, dim, slot)
    mapping = [i for i, count in enumerate(rows) for _ in range(count)]
    compressed = torch.full((len(mapping) + 3, dim), -77.0, dtype=torch.bfloat16)

    def bounds(lengths: list[int]) -> torch.Tensor:
        return torch.cat((torch.zeros(1), torch.tensor(lengths).cumsum(0))).int()

    arguments = [
        Argument("score", score),
        Argument("latent", latent),
        Argument("state_cache", state, output=True),
        Argument("state_block_idx", (order + 1).int()),
        Argument("compressed_batch_mapping", _int32([*mapping, -1])),
        Argument("cu_seqlens_q", bounds(qlens)),
        Argument("cu_seqlens_k", bounds(klens)),
        Argument("cu_compressed_seqlens_q", bounds(rows)),
        Argument("mirror_cp_reverse_index", mirror),
        Argument("kv_compressed", compressed[1:-1], output=True, tolerance=OUTPUT),
    ]
    return Call(arguments, named={"DIM": dim, "COMPRESS_RATIO": r, "HAS_INDEX": mirrored})


def _random_chunks(count: int, longest: int) -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(count)
    old = torch.randint(0, 1000, (count,), generator=generator)
    new = torch.randint(0, longest, (count,), generator=generator)
    return [(0, longest), (7, 0), *zip(old.tolist(), new.tolist(), strict=True)]


_EDGES = [(0, 5), (3, 0), (3, 1), (7, 6), (4, 1), (1, 20), (0, 0), (9, 2)]
"""Empty chunks, chunks that begin or end inside a window, one that fills its ring more than twice."""


def _prefill_cases() -> list[Case]:
    found = []
    for name, r, dim, ring, chunks, stride, slot, engine in (
        ("empty-batch", 2, 40, 3, [], 0, 0, False),
        ("edges-r1", 1, 40, 7, _EDGES, 0, 0, False),
        ("edges-r2", 2, 40, 7, _EDGES, 0, 0, False),
        ("ring-of-one", 2, 128, 1, [(3, 2), (2, 3)], 0, 0, False),
        ("two-tiles", 2, 1100 - 4, 3, [(3, 2), (0, 5)], 0, 0, False),
        ("model", 2, 512, 7, [(3, 6), (128, 9), (1, 1)], 1056, SLOT, True),
        ("model-r1", 1, 512, 7, [(3, 4), (0, 2)], 0, 0, False),
        *(
            (f"16-sequences-r{r}-{dim}", r, dim, 138, _random_chunks(16, 500), 0, 0, False)
            for r, dim in ((1, 128), (2, 128), (2, 384), (1, 512), (2, 512), (2, 3072), (2, 4096))
        ),
        *((f"store-range-{dim}", 2, dim, 138, [(5, 2), (0, 138), (3, 552)], 0, 0, False) for dim in (128, 512)),
        ("16384-tokens", 2, 512, 7, [(0, 4096), (4095, 4097), (128, 8191)], 1056, SLOT, False),
    ):
        for mirrored in (False, True):
            make = partial(
                _prefill, r=r, dim=dim, ring=ring, chunks=chunks, mirrored=mirrored, stride=stride, slot=slot
            )
            full = f"prefill-{name}{'-mirrored' if mirrored else ''}"
            large = sum(new for _, new in chunks) > 100
            found.append(Case("compress_and_update_state_prefill_tl", full, make, large=large, engine=engine))
    return found


def _decode(
    generator: torch.Generator, *, r: int, dim: int, sequences: int, steps: int, share: float, stride: int, slot: int
) -> Call:
    """steps: the most rows of a sequence; share: the part of sequences that have so many. Padding rows follow."""
    ring = r + steps - 1
    many = torch.rand(sequences, generator=generator) < share
    lengths = torch.where(many, steps, 1)
    begin = torch.randint(1, 300, (sequences,), generator=generator)
    slots = torch.randperm(sequences, generator=generator) + 1
    first = lengths.cumsum(0) - lengths
    step = torch.arange(int(lengths.sum())) - first.repeat_interleave(lengths)
    context = torch.cat((begin.repeat_interleave(lengths) + step, torch.tensor([1, 0, -5, 4])))
    owner = torch.cat((slots.repeat_interleave(lengths), torch.tensor([0, 1, 1, -1])))
    # Rows of a sequence need not be neighbours, nor in order.
    order = torch.randperm(len(owner), generator=generator)
    score, latent = _tokens(generator, len(owner), dim, stride)
    out = torch.full((len(owner) + 2, dim), -77.0, dtype=torch.bfloat16)
    arguments = [
        Argument("score", score),
        Argument("latent", latent),
        Argument("state_cache", _state(generator, sequences + 1, ring, dim, slot), output=True),
        Argument("state_block_idx", owner[order].int()),
        Argument("context_lens", context[order].int()),
        Argument("kv_compressed", out[1:-1], output=True, tolerance=OUTPUT),
    ]
    return Call(arguments, named={"DIM": dim, "COMPRESS_RATIO": r})


def _decode_cases() -> list[Case]:
    found = []
    for name, r, dim, sequences, steps, share, stride, slot, engine in (
        ("no-live-rows", 2, 128, 0, 1, 0.0, 0, 0, False),
        ("r1", 1, 128, 5, 1, 0.0, 0, 0, False),
        ("odd-width", 2, 40, 5, 3, 0.5, 0, 0, False),
        ("shared-slots", 2, 128, 4, 6, 1.0, 0, 0, False),
        ("two-tiles", 2, 1096, 3, 2, 0.5, 0, 0, False),
        ("model", 2, 512, 3, 6, 0.7, 1056, SLOT, True),
        *(
            (f"256-sequences-r{r}-{dim}-{steps}-{share}", r, dim, 256, steps, share, 0, 0, False)
            for r, dim, steps, share in (
                (1, 512, 1, 0.5),
                (2, 512, 1, 0.5),
                (2, 128, 1, 0.5),
                (2, 384, 6, 0.5),
                (2, 128, 2, 0.0),
                (2, 512, 2, 1.0),
                (2, 3072, 6, 0.5),
                (2, 4096, 6, 0.5),
            )
        ),
    ):
        make = partial(_decode, r=r, dim=dim, sequences=sequences, steps=steps, share=share, stride=stride, slot=slot)
        large = sequences > 100
        found.append(Case("compress_and_update_state_decode_tl", f"decode-{name}", make, large=large, engine=engine))
    return found
