"""Cases of `store_mtp_info_tl` (kernel_spec A.5)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(
    generator: torch.Generator, *, r: int, nextn: int, width: int, index: bool, confidence: bool, outside: bool
) -> Call:
    slots = r + 4
    write = (torch.randperm(slots - 1, generator=generator)[:r] + 1).int()
    write[::4] = 0
    if outside:
        write[1::4], write[2::4] = -1, slots
    # A last slot that is not whole, where slots have more than a row: slot `slots` is written to several times.
    pool_rows = slots * nextn + (outside and nextn > 1)

    def floats(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(0, 129280, shape, dtype=torch.int32, generator=generator)

    def pool(dtype: torch.dtype, *shape: int, wanted: bool = True) -> torch.Tensor | None:
        return torch.full((pool_rows, *shape), 77, dtype=dtype) if wanted else None

    arguments = [
        Argument("write_slots", write),
        Argument("token_ids", ids(r, nextn)),
        Argument("logprobs", floats(r, nextn, width)),
        Argument("logprobs_index", ids(r, nextn, width) if index else None),
        Argument("confidence", floats(r, nextn) if confidence else None),
        Argument("token_ids_pool", pool(torch.int32), output=True),
        Argument("logprobs_pool", pool(torch.float32, width), output=True),
        Argument("logprobs_index_pool", pool(torch.int32, width, wanted=index), output=True),
        Argument("confidence_pool", pool(torch.float32, wanted=confidence), output=True),
    ]
    return Call(arguments, (nextn, width, index, confidence))


def cases() -> list[Case]:
    """Whole vocabularies and top-k rows; one and 33 drafts; padding slots; slots outside of the pool."""
    found = []
    for name, r, nextn, width, index, confidence, outside, large, engine in (
        ("topk", 9, 5, 1024, True, True, False, False, True),
        ("topk-bare", 5, 5, 1000, True, False, True, False, False),
        ("wide", 3, 2, 9001, False, True, False, False, False),
        ("narrow", 20, 1, 33, False, False, True, False, False),
        ("33-drafts", 2, 33, 16, False, True, False, False, False),
        ("none", 0, 5, 64, True, True, False, False, False),
        ("outside", 12, 3, 64, True, True, True, False, False),
        ("vocabulary", 33, 5, 129280, False, True, False, True, True),
        ("vocabulary-7", 33, 7, 129280, False, False, False, True, False),
        ("topk-7", 512, 7, 1024, True, True, False, True, False),
    ):
        make = partial(_make, r=r, nextn=nextn, width=width, index=index, confidence=confidence, outside=outside)
        found.append(Case("store_mtp_info_tl", name, make, large=large, engine=engine))
    return found
