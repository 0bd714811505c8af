"""Cases of the context-parallel index kernels (kernel_spec A.18)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case

RANKS = ((1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3), (8, 0), (8, 4), (8, 7))
RATIO_SETS = ((1,), (2,), (1, 2))


def starts(lengths: torch.Tensor) -> torch.Tensor:
    """[n + 1] int32: where each of these lengths begins."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()


def kept_rows(lengths: list[int], keeps: list[int], cp: int) -> list[int]:
    """How many mirror rows each rank keeps."""
    found = [0] * cp
    for sq, keep in zip(lengths, keeps, strict=True):
        ps = -(-sq // (2 * cp))
        for block in range(2 * cp):
            first, last = max(block * ps, sq - keep), min((block + 1) * ps, sq)
            found[min(block, 2 * cp - 1 - block)] += max(last - first, 0)
    return found


def mirror_call(
    generator: torch.Generator, *, q: list[int] | int, cp: int, rank: int, ratios: tuple[int, ...], most: int = 0
) -> Call:
    """q: lengths of the sequences, or how many there are of random lengths below `most`."""
    sq = torch.tensor(q) if isinstance(q, list) else torch.randint(0, most, (q,), generator=generator)
    sk = sq + torch.randint(0, 100, sq.shape, generator=generator)
    rows = int((2 * ((sq + 2 * cp - 1) // (2 * cp))).sum())
    one = partial(torch.full, fill_value=-77, dtype=torch.int32)
    arguments = [
        Argument("cu_seqlens_q", starts(sq)),
        Argument("cu_seqlens_k", starts(sk)),
        Argument("cu_lens", one((len(ratios) + 1, len(sq) + 1)), output=True, tolerance=None),
        Argument("mirror_cp_reverse_index", one((int(sq.sum()),)), output=True),
        Argument("mirror_cp_index", one((rows,)), output=True),
        Argument("ks_out", one((len(ratios), rows)), output=True),
        Argument("ke_out", one((len(ratios), rows)), output=True),
        Argument("cp_rank", rank),
    ]
    return Call(arguments, (cp, ratios))


def boundary_call(
    generator: torch.Generator, *, lengths: list[int], keeps: list[int], cp: int, rank: int, spare: int = 0
) -> Call:
    """spare: how much longer the padded list is than it has to be."""
    padded = max(kept_rows(lengths, keeps, cp)) + spare
    one = partial(torch.full, fill_value=-77, dtype=torch.int32)
    arguments = [
        Argument("cu_seqlens_q", starts(torch.tensor(lengths))),
        Argument("cu_seqlens_q_c", starts(torch.tensor(keeps))),
        Argument("cu_lens", one((cp + 1, len(lengths) + 1)), output=True, tolerance=None),
        Argument("yoco_contrib_index", one((padded,)), output=True),
        Argument("yoco_gathered_reverse_index", one((sum(keeps),)), output=True),
        Argument("cp_rank", rank),
    ]
    return Call(arguments, (cp,))


def _mirror_cases() -> list[Case]:
    lists = {"published": [5], "empty-among": [0, 7, 0, 0, 33, 1, 0], "tiny": [1, 2, 3, 4, 5, 6, 7, 8], "one": [300]}
    found = []
    for cp, rank in RANKS:
        for name, q in lists.items():
            ratios = RATIO_SETS[(cp + rank + len(q)) % len(RATIO_SETS)]
            make = partial(mirror_call, q=q, cp=cp, rank=rank, ratios=ratios)
            found.append(Case("prepare_cp_mirror_tl", f"{name}-{cp}-{rank}", make, engine=name == "one"))
        for ratios in RATIO_SETS:
            shown = "-".join(map(str, ratios))
            for name, most in (("short", 17), ("long", 500)):
                make = partial(mirror_call, q=513, most=most, cp=cp, rank=rank, ratios=ratios)
                found.append(Case("prepare_cp_mirror_tl", f"{name}-{cp}-{rank}-{shown}", make, large=True))
    many = partial(mirror_call, q=[2] * 2000, cp=2, rank=1, ratios=(1, 2))
    return [*found, Case("prepare_cp_mirror_tl", "2000-sequences", many)]


def cases() -> list[Case]:
    """Every rank of every size, empty sequences, more sequences than a chunk; kept suffixes of every length."""
    found = _mirror_cases()
    for name, lengths, keeps, spare in (
        ("all-kept", [9, 16, 3], [9, 16, 3], 0),
        ("suffixes", [37, 8, 0, 64, 5], [11, 8, 0, 1, 2], 0),
        ("padded", [40, 17], [3, 4], 5),
        ("last-only", [33, 33, 1], [1, 1, 1], 0),
        ("production", [1024, 300, 20], [140, 140, 20], 0),
        ("many", [6] * 1100, [4] * 1100, 1),
        ("nothing-kept", [9, 4], [0, 0], 3),
    ):
        for rank in range(4):
            make = partial(boundary_call, lengths=lengths, keeps=keeps, cp=4, rank=rank, spare=spare)
            engine = name == "production"
            found.append(Case("yoco_cp_boundary_fused_tl", f"{name}-{rank}", make, engine=engine))
    for cp in (1, 2, 8):
        make = partial(boundary_call, lengths=[37, 8, 0, 64], keeps=[11, 8, 0, 1], cp=cp, rank=cp - 1)
        found.append(Case("yoco_cp_boundary_fused_tl", f"suffixes-of-{cp}", make))
    return found
