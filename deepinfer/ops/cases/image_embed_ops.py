"""Cases of the image kernels (kernel_spec A.17)."""

from __future__ import annotations

from functools import partial

import torch

from deepinfer.ops.case import Argument, Call, Case
from deepinfer.ops.tolerance import EXACT, Tolerance

IMAGE = 2
PADS = (3, 4, 5, 6)


def _replace(generator: torch.Generator, *, tokens: int, hidden: int, share: float, missing: int, stride: int) -> Call:
    ids = torch.randint(7, 50, (tokens,), dtype=torch.int32, generator=generator)
    kind = torch.rand(tokens, generator=generator)
    ids[kind < share] = IMAGE
    ids[kind > 0.9] = PADS[1]
    ids[kind > 0.95] = PADS[3]
    offset = (ids == IMAGE).cumsum(0, dtype=torch.int32)
    images = max(int(offset[-1]) - missing, 0) if tokens else 0
    embeds = torch.randn(tokens, stride, generator=generator).bfloat16()[:, :hidden]
    arguments = [
        Argument("input_embeds", embeds, output=True),
        Argument("input_ids", ids),
        Argument("images_embeds", torch.randn(images, hidden, generator=generator).bfloat16()),
        Argument("image_token_id", IMAGE),
        Argument("image_token_offset", offset),
        Argument("image_pad_token_ids", torch.tensor([*PADS, PADS[3]], dtype=torch.int32)),
        Argument("image_pad_embeds", torch.randn(len(PADS) + 1, hidden, generator=generator).bfloat16()),
    ]
    return Call(arguments, (hidden,))


def _patches(generator: torch.Generator, *, grids: list[tuple[int, int]], patch: int, cut: int, spare: int) -> Call:
    """cut: how many pixels the images are smaller than their grids; spare: rows of output beyond the grids."""
    crop = torch.tensor(grids, dtype=torch.int32)
    size = (crop * patch - cut * torch.arange(len(grids), dtype=torch.int32).unsqueeze(1)).clamp(min=0)
    raw = torch.cat([torch.zeros(1, dtype=torch.int64), (size.long().prod(1) * 3).cumsum(0)])
    vit = torch.cat([torch.zeros(1, dtype=torch.int64), crop.long().prod(1).cumsum(0)]).int()
    arguments = [
        Argument("image_raw_concat", torch.randint(0, 256, (int(raw[-1]),), dtype=torch.uint8, generator=generator)),
        Argument("cu_raw_bytes", raw),
        Argument("image_real_sizes", size),
        Argument("images_spatial_crop", crop),
        Argument("cu_seqlens_vit", vit),
        Argument("mean", 0.48145466),
        Argument("std", 0.26862954),
        Argument("pad_color", 122.0),
        Argument("output", torch.full((int(vit[-1]) + spare, 3, patch, patch), 77.0).bfloat16(), output=True),
    ]
    return Call(arguments, (patch,))


def _downsample(
    generator: torch.Generator, *, crops: list[tuple[int, int]], r: int, dim: int, pool: bool, dtype: torch.dtype
) -> Call:
    crop = torch.tensor(crops, dtype=torch.int64)
    zero = torch.zeros(1, dtype=torch.int64)
    starts = torch.cat([zero, crop.prod(1).cumsum(0)])
    windows = torch.cat([zero, ((crop + r - 1) // r).prod(1).cumsum(0)])
    count = int(windows[-1])
    shape = (count, dim) if pool else (count, dim, r, r)
    out = torch.full(shape, 77.0).to(dtype)
    tolerance = EXACT if not pool else Tolerance(1e-2, 1e-2) if dtype == torch.bfloat16 else Tolerance(1e-5, 1e-5)
    arguments = [
        Argument("images_feature", torch.randn(int(starts[-1]), dim, generator=generator).to(dtype)),
        Argument("images_id", torch.bucketize(torch.arange(count), windows[1:], right=True)),
        Argument("images_spatial_crop", crop),
        Argument("cu_seqlen_downsp", windows),
        Argument("cu_seqlen", starts),
        Argument("images_embeds", None if pool else out, output=not pool),
        Argument("images_embeds_sum", out if pool else None, output=pool, tolerance=tolerance),
    ]
    return Call(arguments, (r, dim, pool, dtype))


def _replace_cases() -> list[Case]:
    found = []
    for name, tokens, hidden, share, missing, stride, large in (
        ("half", 24, 96, 0.5, 0, 96, False),
        ("all-images", 9, 96, 1.0, 0, 96, False),
        ("no-image", 9, 96, 0.0, 0, 96, False),
        ("too-few-embeddings", 24, 33, 0.5, 5, 40, False),
        ("two-blocks", 5, 2100, 0.5, 0, 2100, False),
        ("no-token", 0, 96, 0.5, 0, 96, False),
        ("prompt-1027", 1027, 4096, 0.5, 0, 4096, True),
        ("prompt", 16384, 5120, 0.5, 0, 5120, True),
        ("prompt-all", 16384, 5120, 1.0, 0, 5120, True),
        ("engine", 64, 5120, 0.5, 0, 5120, False),
    ):
        make = partial(_replace, tokens=tokens, hidden=hidden, share=share, missing=missing, stride=stride)
        found.append(Case("replace_input_embeds_tl", name, make, large=large, engine=name == "engine"))
    return found


def cases() -> list[Case]:
    """Tokens with and without images, odd widths; padded, empty and full images; windows that reach beyond an image."""
    found = _replace_cases()
    for name, grids, patch, cut, spare, large in (
        ("exact", [(2, 2), (1, 3)], 14, 0, 0, False),
        ("padded", [(2, 1), (3, 2), (0, 0), (1, 2)], 14, 3, 0, False),
        ("odd-patch", [(2, 3), (1, 1)], 3, 1, 2, False),
        ("nothing-real", [(1, 1), (1, 1)], 4, 9, 0, False),
        ("larger-than-grid", [(2, 2), (2, 1)], 4, -5, 0, False),
        ("photographs", [(54 - image % 5, 54 + image % 3) for image in range(50)], 14, 1, 0, True),
    ):
        make_patches = partial(_patches, grids=grids, patch=patch, cut=cut, spare=spare)
        engine = patch == 14 and not large
        found.append(Case("rgb_pad_to_patches_tl", name, make_patches, large=large, engine=engine))
    for pool in (False, True):
        for dtype in (torch.bfloat16, torch.float32):
            suffix = f"{'pool' if pool else 'concat'}-{'bf16' if dtype == torch.bfloat16 else 'f32'}"
            for name, crops, r, dim, large in (
                ("ragged", [(6, 9), (7, 5), (0, 0), (1, 1)], 3, 24, False),
                ("one-to-one", [(3, 2)], 1, 40, False),
                ("real", [(6, 9), (7, 5), (0, 0), (54, 54), (1, 1)], 3, 1024, True),
                ("engine", [(2, 2)], 3, 1024, False),
            ):
                make_windows = partial(_downsample, crops=crops, r=r, dim=dim, pool=pool, dtype=dtype)
                engine = name == "engine" and dtype == torch.bfloat16 and not pool
                found.append(Case("batch_downsample_tl", f"{name}-{suffix}", make_windows, large=large, engine=engine))
    return found
