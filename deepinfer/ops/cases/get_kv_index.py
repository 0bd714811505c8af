"""Cases of `load_kv_index_tl` (kernel_spec A.9) and `get_fused_dflash_get_input_tl` (A.8)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def cases() -> list[Case]:
    """Index rows with offsets up to 2e9, and draft metadata with and without padding requests and masks."""
    return [*_load_cases(), *_draft_cases()]


def _load(generator: torch.Generator, *, n: int, width: int, block_size: int, entries: int) -> Call:
    """entries: size of the table; 0 stands for no table."""
    highest = entries * block_size if entries else 2_000_000_000
    offset = torch.randint(0, highest, (n,), dtype=torch.int32, generator=generator)
    length = torch.randint(0, width + 1, (n,), dtype=torch.int32, generator=generator)
    offset_len = torch.stack((offset, length), 1).contiguous()
    edges = [[0, 0], [2_000_000_000, width], [3, 2**31 - 1], [highest - 2, width], [-5, width], [7, -1]]
    offset_len[: len(edges)] = torch.tensor(edges, dtype=torch.int32)[:n]
    if n == 1:
        offset_len[0] = torch.tensor([highest // 2, width - 3])
    table = torch.randint(0, 10_000, (entries,), dtype=torch.int32, generator=generator) if entries else None
    buffer = torch.full((n + 2, width), 0x5A5A5A5A, dtype=torch.int32)
    arguments = [
        Argument("kv_index_offset_len", offset_len),
        Argument("kv_index", buffer[1 : n + 1], output=True),
        Argument("flatten_block_tables", table),
    ]
    return Call(arguments, (width, block_size), {"has_block_tables": entries > 0})


def _load_cases() -> list[Case]:
    found = []
    for name, n, width, block_size, entries, engine in (
        ("no-rows", 0, 128, 64, 9, False),
        ("contiguous-1x128", 1, 128, 0, 0, False),
        ("contiguous-9x512", 9, 512, 0, 0, True),
        ("contiguous-2048x512", 2048, 512, 0, 0, True),
        ("contiguous-7x1500", 7, 1500, 0, 0, False),
        ("paged-64-9x512", 9, 512, 64, 4096, True),
        ("paged-128-9x512", 9, 512, 128, 4096, True),
        ("paged-32-6x2100", 6, 2100, 32, 77, False),
        ("paged-1-8x70", 8, 70, 1, 100, False),
        ("ring-134-9x128", 9, 128, 134, 0, True),
        ("ring-10-6x37", 6, 37, 10, 0, False),
        ("ring-128-1x128", 1, 128, 128, 0, False),
        ("contiguous-1x262144", 1, 262144, 0, 0, False),
        ("contiguous-128x262144", 128, 262144, 0, 0, False),
        ("paged-64-128x262144", 128, 262144, 64, 1 << 20, False),
        ("paged-32-128x32768", 128, 32768, 32, 1 << 20, False),
        ("ring-133-128x128", 128, 128, 133, 0, False),
    ):
        make = partial(_load, n=n, width=width, block_size=block_size, entries=entries)
        found.append(Case("load_kv_index_tl", name, make, large=n * width > 14_000, engine=engine))
    return found


def _draft(
    generator: torch.Generator,
    *,
    requests: int,
    padding: int,
    drafts: int,
    ring: int,
    window: int,
    masks: tuple[int, int],
) -> Call:
    lengths = torch.randint(1, drafts + 2, (requests,), dtype=torch.int32, generator=generator)
    first = (torch.cumsum(lengths, 0) - lengths).int()
    begin = torch.randint(0, 3 * ring, (requests,), dtype=torch.int32, generator=generator)
    begin[:1] = 0
    step = torch.arange(int(lengths.sum()), dtype=torch.int32) - first.repeat_interleave(lengths)
    positions = begin.repeat_interleave(lengths) + step
    slots = torch.arange(1, requests + 1, dtype=torch.int32).repeat_interleave(lengths) * ring + positions % ring
    accepted = (torch.rand(requests, generator=generator) * lengths).int()
    none = torch.full((padding,), -1, dtype=torch.int32)
    rows = requests + padding
    ftp = torch.cat((first, none))
    if padding > 2:
        ftp[-1] = 2**31 - 1

    def out(dtype: torch.dtype) -> torch.Tensor:
        junk = True if dtype == torch.bool else 0x5A5A5A5A
        return torch.full((rows + 2, drafts), junk, dtype=dtype)[1:-1]

    kv_len = window + drafts
    padded = -(-kv_len // 64) * 64
    keys = torch.full((rows * drafts + 2, padded), 0x5A5A5A5A, dtype=torch.int32)[1:-1]
    arguments = [
        Argument("slot_mapping_swa", slots),
        Argument("positions", positions),
        Argument("ftp", ftp),
        Argument("last_valid_offset", torch.cat((accepted, none + 1))),
        Argument("newx_slot_mapping_out", out(torch.int32), output=True),
        Argument("positions_out", out(torch.int32), output=True),
        Argument("input_ids_out", out(torch.int32), output=True),
        Argument("valid_token_mask_out", out(torch.bool) if masks[0] else None, output=True),
        Argument("gate_force_random_out", out(torch.bool) if masks[1] else None, output=True),
        Argument("kv_index_out", keys, output=True),
        Argument("kv_len", kv_len),
        Argument("window_size", window),
    ]
    return Call(arguments, (ring, padded, bool(masks[0]), bool(masks[1])))


def _draft_cases() -> list[Case]:
    found = []
    for requests, padding, drafts, ring, window, masks, engine in (
        (1, 0, 1, 132, 128, (0, 0), False),
        (1, 1, 5, 132, 128, (1, 0), False),
        (5, 3, 5, 134, 128, (1, 1), True),
        (4, 0, 5, 134, 128, (0, 0), True),
        (9, 3, 3, 17, 12, (0, 1), False),
        (3, 1, 32, 160, 128, (1, 1), False),
        (517, 0, 5, 2048, 128, (0, 0), False),
        (517, 7, 5, 2048, 128, (1, 1), False),
        (256, 0, 5, 134, 128, (1, 1), False),
    ):
        name = f"{requests}+{padding}x{drafts}-ring-{ring}-masks-{masks[0]}{masks[1]}"
        make = partial(_draft, requests=requests, padding=padding, drafts=drafts, ring=ring, window=window, masks=masks)
        found.append(Case("get_fused_dflash_get_input_tl", name, make, large=requests > 100, engine=engine))
    return found
