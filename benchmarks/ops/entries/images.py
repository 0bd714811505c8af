"""Images: embeddings into a prompt, pixels to patches, features by windows. Rows are tokens, patches, patches."""

from __future__ import annotations

import torch

from benchmarks.ops.entry import Entry, Inputs, Work, reads, size, work, writes
from benchmarks.ops.model import DOWNSAMPLE, HIDDEN, PATCH_SIZE, VISION_DIM

BF16 = torch.bfloat16
IMAGE = 2
ACROSS = 54
"""Patches across an image."""


def _replace(rows: int, inputs: Inputs) -> Work:
    """Every token belongs to an image; one of twenty is a pad."""
    ids = inputs.full(IMAGE, rows)
    ids[19::20] = 6
    images, pads = inputs.normal(rows, HIDDEN), inputs.normal(4, HIDDEN)
    embeds = inputs.normal(rows, HIDDEN)
    arguments = [
        *writes(input_embeds=embeds),
        *reads(input_ids=ids, images_embeds=images, image_token_id=IMAGE),
        *reads(image_token_offset=(ids == IMAGE).cumsum(0, dtype=torch.int32)),
        *reads(image_pad_token_ids=inputs.range(4) + 3, image_pad_embeds=pads),
    ]
    return work(arguments, (HIDDEN,), moved=2 * size(embeds) + 2 * size(ids))


def _grid(rows: int) -> tuple[int, int]:
    across = min(rows, ACROSS)
    return across, max(1, rows // across)


def _patches(rows: int, inputs: Inputs) -> Work:
    """One image that fills its grid."""
    across, down = _grid(rows)
    count, side = across * down, PATCH_SIZE
    raw = inputs.integers(0, 256, count * side * side * 3, dtype=torch.uint8)
    crop = torch.tensor([[across, down]], dtype=torch.int32, device=inputs.device)
    output = inputs.empty(count, 3, side, side, dtype=BF16)
    arguments = [
        *reads(image_raw_concat=raw, cu_raw_bytes=inputs.range(2).long() * raw.numel()),
        *reads(image_real_sizes=crop * side, images_spatial_crop=crop, cu_seqlens_vit=inputs.range(2) * count),
        *reads(mean=0.48, std=0.27, pad_color=122.0),
        *writes(output=output),
    ]
    return work(arguments, (side,))


def _downsample(rows: int, inputs: Inputs) -> Work:
    across, down = _grid(rows)
    r, count = DOWNSAMPLE, across * down
    windows = -(-across // r) * -(-down // r)
    feature = inputs.normal(count, VISION_DIM)
    ends = inputs.range(2).long()
    arguments = [
        *reads(images_feature=feature, images_id=inputs.full(0, windows, dtype=torch.int64)),
        *reads(images_spatial_crop=torch.tensor([[across, down]], device=inputs.device)),
        *reads(cu_seqlen_downsp=ends * windows, cu_seqlen=ends * count),
        *writes(images_embeds=inputs.empty(windows, VISION_DIM, r, r, dtype=BF16), images_embeds_sum=None),
    ]
    return work(arguments, (r, VISION_DIM, False, BF16))


ENTRIES = [
    Entry("replace_input_embeds_tl", "all-images", _replace),
    Entry("rgb_pad_to_patches_tl", "one-image", _patches),
    Entry("batch_downsample_tl", "concatenate", _downsample),
]
