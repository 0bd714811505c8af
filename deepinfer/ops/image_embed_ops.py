"""Images in a prompt: their embeddings, their pixels as patches, their features by windows (kernel_spec A.17)."""

from __future__ import annotations

import torch

from deepinfer.ops.checks import Arguments
from deepinfer.ops.dispatch import factory

POOLING = "pooling_"
CONCATENATING = ("downsample_mlp_gelu", "identity")


def replace_input_embeds(
    input_embeds: torch.Tensor,
    input_ids: torch.Tensor,
    images_embeds: torch.Tensor,
    image_token_id: int,
    image_pad_token_ids: torch.Tensor,
    image_pad_embeds: torch.Tensor,
) -> None:
    """Put image embeddings into a prompt, in place.

    The k-th token equal to image_token_id gets images_embeds[k]; any other that equals image_pad_token_ids[i] gets
    image_pad_embeds[i] (the smallest such i); the rest keep theirs, and so do image tokens beyond images_embeds.

    Args:
        input_embeds: [T, hidden] bf16, rows contiguous.
        input_ids: [T] int32.
        images_embeds: [I, hidden] bf16, contiguous.
        image_token_id: fits int32.
        image_pad_token_ids, image_pad_embeds: [p] int32 and [p, hidden] bf16, contiguous; p may be 0.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("replace_input_embeds")
    check.tensor("input_embeds", input_embeds, torch.bfloat16, ("T", "hidden"))
    check.tensor("input_ids", input_ids, torch.int32, ("T",), rows="contiguous")
    check.tensor("images_embeds", images_embeds, torch.bfloat16, ("I", "hidden"), rows="contiguous")
    check.tensor("image_pad_token_ids", image_pad_token_ids, torch.int32, ("p",), rows="contiguous")
    check.tensor("image_pad_embeds", image_pad_embeds, torch.bfloat16, ("p", "hidden"), rows="contiguous")
    check.whole_number("image_token_id", image_token_id, at_least=-(2**31), at_most=2**31 - 1)
    if input_embeds.numel() == 0:
        return
    offset = (input_ids == image_token_id).cumsum(0, dtype=torch.int32)
    factory("replace_input_embeds_tl")(check.size("hidden"))(
        input_embeds, input_ids, images_embeds, image_token_id, offset, image_pad_token_ids, image_pad_embeds
    )


def rgb_pad_to_patches(
    image_raw_concat: torch.Tensor,
    cu_raw_bytes: torch.Tensor,
    image_real_sizes: torch.Tensor,
    images_spatial_crop: torch.Tensor,
    cu_seqlens_vit: torch.Tensor,
    total_patches: int,
    patch_size: int,
    mean: float,
    std: float,
    pad_color: float,
) -> torch.Tensor:
    """Pixels of images, each centred in its grid of patches, normalised: bf16(((u8) / 255 - mean) / std) in float32.

    The gap left and above is half of what is missing, rounded half to even. What no pixel covers counts as pad_color.

    Args:
        image_raw_concat: [bytes] uint8: the images one after another, rows of R, G, B, nothing between them.
        cu_raw_bytes: [N + 1] int64: where each image's bytes begin.
        image_real_sizes: [N, 2] int32: width and height in pixels.
        images_spatial_crop: [N, 2] int32: width and height in patches.
        cu_seqlens_vit: [N + 1] int32: where each image's patches begin.
        total_patches: cu_seqlens_vit[N].
        patch_size: width and height of a patch in pixels, 1 to 64.
        mean, std: of all channels, in 0 to 1.
        pad_color: 0 to 255.

    Returns:
        [total_patches, 3, patch_size, patch_size] bf16: patches of an image row by row, channels R, G, B.

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("rgb_pad_to_patches")
    check.tensor("image_raw_concat", image_raw_concat, torch.uint8, ("bytes",), rows="contiguous")
    check.tensor("image_real_sizes", image_real_sizes, torch.int32, ("N", 2), rows="contiguous")
    check.tensor("images_spatial_crop", images_spatial_crop, torch.int32, ("N", 2), rows="contiguous")
    check.tensor("cu_raw_bytes", cu_raw_bytes, torch.int64, (check.size("N") + 1,), rows="contiguous")
    check.tensor("cu_seqlens_vit", cu_seqlens_vit, torch.int32, (check.size("N") + 1,), rows="contiguous")
    check.whole_number("total_patches", total_patches, at_least=0)
    check.whole_number("patch_size", patch_size, at_least=1, at_most=64)
    check.require(std != 0, "std", "must not be 0")
    shape = (total_patches, 3, patch_size, patch_size)
    output = torch.empty(shape, dtype=torch.bfloat16, device=image_raw_concat.device)
    factory("rgb_pad_to_patches_tl")(patch_size)(
        image_raw_concat,
        cu_raw_bytes,
        image_real_sizes,
        images_spatial_crop,
        cu_seqlens_vit,
        float(mean),
        float(std),
        float(pad_color),
        output,
    )
    return output


def batch_downsample(
    images_feature: torch.Tensor,
    images_spatial_crop: torch.Tensor,
    downsample_ratio: int,
    mode: str = "downsample_mlp_gelu",
    num_downsampled_patch: int = -1,
) -> torch.Tensor:
    """Features of patches, window by window of r x r: concatenated by channel, or their mean.

    Args:
        images_feature: [P, dim] bf16 or float32, contiguous: the images' patches, row by row.
        images_spatial_crop: [..., 2] int64: each image's width and height in patches; 0, 0 for an image without any.
        downsample_ratio: r >= 1; a window that reaches beyond the image holds zeros there.
        mode: "downsample_mlp_gelu" or "identity": concatenate; one that begins with "pooling_": mean of what is there.
        num_downsampled_patch: how many windows there are; -1 reads it from the device, which waits for it.

    Returns:
        [windows, dim * r * r] (the element of channel k, row i, column j of a window at (k * r + i) * r + j), or
        [windows, dim].

    Raises:
        TypeError, ValueError: an argument is not as said.
    """
    check = Arguments("batch_downsample")
    check.tensor("images_feature", images_feature, (torch.bfloat16, torch.float32), ("P", "dim"), rows="contiguous")
    check.require(
        isinstance(images_spatial_crop, torch.Tensor) and images_spatial_crop.shape[-1:] == (2,),
        "images_spatial_crop",
        "must be a tensor whose last dimension is 2",
    )
    crop = images_spatial_crop.reshape(-1, 2)
    check.tensor("images_spatial_crop", crop, torch.int64, ("N", 2), rows="contiguous")
    r = check.whole_number("downsample_ratio", downsample_ratio, at_least=1)
    pool = mode.startswith(POOLING)
    check.require(
        pool or mode in CONCATENATING, "mode", f"must be {', '.join(CONCATENATING)} or {POOLING}*, not {mode!r}"
    )
    check.whole_number("num_downsampled_patch", num_downsampled_patch, at_least=-1)
    device, dim = images_feature.device, check.size("dim")
    starts = torch.zeros((2, crop.shape[0] + 1), dtype=torch.int64, device=device)
    starts[0, 1:] = crop.prod(1).cumsum(0)
    starts[1, 1:] = ((crop + r - 1) // r).prod(1).cumsum(0)
    windows = int(starts[1, -1]) if num_downsampled_patch < 0 else num_downsampled_patch
    shape = (windows, dim) if pool else (windows, dim, r, r)
    out = torch.empty(shape, dtype=images_feature.dtype, device=device)
    if windows:
        images_id = torch.bucketize(torch.arange(windows, device=device), starts[1, 1:].contiguous(), right=True)
        factory("batch_downsample_tl")(r, dim, pool, images_feature.dtype)(
            images_feature, images_id, crop, starts[1], starts[0], None if pool else out, out if pool else None
        )
    return out if pool else out.view(windows, dim * r * r)
