"""Reference of the image kernels (kernel_spec A.17)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def replace_input_embeds_tl(hidden: int) -> Kernel:
    """Image tokens take the next image embedding, pad tokens their own; others keep theirs."""

    def run(
        input_embeds: torch.Tensor,
        input_ids: torch.Tensor,
        images_embeds: torch.Tensor,
        image_token_id: int,
        image_token_offset: torch.Tensor,
        image_pad_token_ids: torch.Tensor,
        image_pad_embeds: torch.Tensor,
    ) -> None:
        image = input_ids == image_token_id
        nth = image_token_offset.long() - 1
        known = image & (nth >= 0) & (nth < images_embeds.shape[0])
        input_embeds[known] = images_embeds[nth[known]]
        for pad in range(image_pad_token_ids.shape[0] - 1, -1, -1):
            input_embeds[~image & (input_ids == image_pad_token_ids[pad])] = image_pad_embeds[pad]

    return run


@functools.cache
def rgb_pad_to_patches_tl(patch_size: int) -> Kernel:
    """Each image centred in its grid, normalised, cut into patches. Rows of output beyond the grids stay."""

    def run(
        image_raw_concat: torch.Tensor,
        cu_raw_bytes: torch.Tensor,
        image_real_sizes: torch.Tensor,
        images_spatial_crop: torch.Tensor,
        cu_seqlens_vit: torch.Tensor,
        mean: float,
        std: float,
        pad_color: float,
        output: torch.Tensor,
    ) -> None:
        p = patch_size
        for image, (width, height) in enumerate(image_real_sizes.tolist()):
            columns, rows = images_spatial_crop[image].tolist()
            grid = torch.full((rows * p, columns * p, 3), pad_color, dtype=torch.float32, device=output.device)
            left, top = round((columns * p - width) / 2), round((rows * p - height) / 2)
            begin = int(cu_raw_bytes[image])
            pixels = image_raw_concat[begin : begin + width * height * 3].view(height, width, 3)
            x, y = max(left, 0), max(top, 0)
            part = pixels[max(-top, 0) :, max(-left, 0) :][: rows * p - y, : columns * p - x]
            grid[y : y + part.shape[0], x : x + part.shape[1]] = part.float()
            value = ((grid / 255 - mean) / std).to(output.dtype)
            first = int(cu_seqlens_vit[image])
            patches = value.view(rows, p, columns, p, 3).permute(0, 2, 4, 1, 3)
            output[first : first + rows * columns] = patches.reshape(rows * columns, 3, p, p)

    return run


@functools.cache
def batch_downsample_tl(downsample_ratio: int, dim: int, do_downsample: bool, dtype: torch.dtype) -> Kernel:
    """Windows of r x r patches: their mean where do_downsample, else side by side, zeros beyond the image."""
    r = downsample_ratio

    def run(
        images_feature: torch.Tensor,
        images_id: torch.Tensor,
        images_spatial_crop: torch.Tensor,
        cu_seqlen_downsp: torch.Tensor,
        cu_seqlen: torch.Tensor,
        images_embeds: torch.Tensor | None,
        images_embeds_sum: torch.Tensor | None,
    ) -> None:
        window = torch.arange(images_id.shape[0], device=images_id.device) - cu_seqlen_downsp[images_id]
        width, height = images_spatial_crop[images_id].unbind(1)
        across = (width + r - 1) // r
        total = torch.zeros((images_id.shape[0], dim), dtype=torch.float32, device=images_id.device)
        count = torch.zeros_like(total[:, :1])
        for i in range(r):
            for j in range(r):
                y, x = window // across * r + i, window % across * r + j
                row = cu_seqlen[images_id] + y * width + x
                inside = ((y < height) & (x < width) & (row < images_feature.shape[0])).unsqueeze(1)
                value = torch.where(inside, images_feature[row.clamp(max=images_feature.shape[0] - 1)], 0)
                if images_embeds is not None:
                    images_embeds[:, :, i, j] = value
                total += value.float()
                count += inside
        if images_embeds_sum is not None:
            images_embeds_sum.copy_(total * (1 / count.clamp(min=1)))

    return run
