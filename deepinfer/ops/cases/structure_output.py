"""Cases of `apply_token_bitmask_by_step_inplace_tl` (kernel_spec A.4)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case


def _make(
    generator: torch.Generator,
    *,
    rows: int,
    width: int,
    words: int,
    indices: list[int],
    counts: list[int] | None = None,
    step: int = 0,
    spare: int = 0,
) -> Call:
    """counts: rows of each request, if they are addressed through ftp. spare: columns beyond a row's end."""
    logits = torch.randn(rows, width + spare, generator=generator)[:, :width]
    requests = len(counts) if counts is not None else rows
    bitmask = torch.randint(-(2**31), 2**31 - 1, (requests, words + spare), generator=generator, dtype=torch.int32)
    bitmask[0], bitmask[-1] = 0, -1
    starts = None
    if counts is not None:
        starts = (torch.tensor(counts).cumsum(0) - torch.tensor(counts)).int()
    arguments = [
        Argument("logits", logits, output=True),
        Argument("bitmask", bitmask[:, :words]),
        Argument("indices", torch.tensor(indices, dtype=torch.int32)),
        Argument("ftp", starts),
        Argument("step", step),
    ]
    return Call(arguments, (min(width, 32 * words), counts is not None))


def cases() -> list[Case]:
    """Rows addressed directly and through ftp, with steps beyond a request's rows; odd widths and narrow masks."""
    found = []
    uneven = [3, 1, 2, 4, 1]
    for name, how in (
        ("direct-8256", {"rows": 17, "width": 8256, "words": 258, "indices": [0, 3, 16, 7, 11]}),
        ("step-0", {"rows": 11, "width": 8256, "words": 258, "indices": [4, 0, 2], "counts": uneven}),
        ("step-2", {"rows": 11, "width": 8256, "words": 258, "indices": [4, 0, 1, 2, 3], "counts": uneven, "step": 2}),
        ("odd-width", {"rows": 3, "width": 77, "words": 3, "indices": [0, 1, 2], "spare": 5}),
        ("narrow-mask", {"rows": 4, "width": 500, "words": 2, "indices": [0, 1, 3], "spare": 3}),
        ("unknown-requests", {"rows": 4, "width": 64, "words": 2, "indices": [-1, 4, 2, 1000]}),
        ("unknown-requests-step", {"rows": 4, "width": 64, "words": 2, "indices": [-1, 2, 1], "counts": [2, 2]}),
        # A request without drafts beside one with five, and padding behind: steps 0 and 3.
        ("no-drafts-beside-5", {"rows": 9, "width": 100, "words": 4, "indices": [0, 1], "counts": [1, 6]}),
        (
            "no-drafts-beside-5-step",
            {"rows": 9, "width": 100, "words": 4, "indices": [0, 1], "counts": [1, 6], "step": 3},
        ),
        ("far-step", {"rows": 6, "width": 64, "words": 2, "indices": [0, 1], "counts": [3, 3], "step": 2**31 - 1}),
        ("nobody", {"rows": 4, "width": 64, "words": 2, "indices": []}),
    ):
        found.append(Case("apply_token_bitmask_by_step_inplace_tl", name, partial(_make, **how)))  # type: ignore[arg-type]
    many = {"rows": 512, "width": 129280, "words": 4040, "indices": list(range(0, 512, 2))}
    for name, how in (
        ("vocabulary", many),
        ("vocabulary-step", {**many, "indices": list(range(128)), "counts": [4] * 128, "step": 3}),
    ):
        case = Case("apply_token_bitmask_by_step_inplace_tl", name, partial(_make, **how), large=True, engine=True)  # type: ignore[arg-type]
        found.append(case)
    return found
