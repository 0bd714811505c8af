"""The image kernels in Triton (kernel_spec A.17)."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch, next_power_of_2
from deepinfer.ops.triton.quantize import narrow, widen


@triton.jit(do_not_specialize=["token", "n_images", "n_pads"])
def _replace(embeds, ids, images, token, offsets, pad_ids, pads, n_images, n_pads, stride,
             HIDDEN: tl.constexpr, PADS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    identity = tl.load(ids + row)
    if identity == token:
        nth = tl.load(offsets + row).to(tl.int64) - 1
        if (nth >= 0) & (nth < n_images):
            tl.store(embeds + row * stride + columns, tl.load(images + nth * HIDDEN + columns, mask=mask), mask=mask)
    else:
        lane = tl.arange(0, PADS)
        own = (tl.load(pad_ids + lane, mask=lane < n_pads, other=0) == identity) & (lane < n_pads)
        pad = tl.min(tl.where(own, lane, PADS), axis=0)
        if pad < PADS:
            tl.store(embeds + row * stride + columns, tl.load(pads + pad * HIDDEN + columns, mask=mask), mask=mask)


@functools.cache
def replace_input_embeds_tl(hidden: int) -> Kernel:
    """Image tokens take the next image embedding, pad tokens their own; others keep theirs."""
    block = min(next_power_of_2(hidden), 2048)

    def run(
        input_embeds: torch.Tensor,
        input_ids: torch.Tensor,
        images_embeds: torch.Tensor,
        image_token_id: int,
        image_token_offset: torch.Tensor,
        image_pad_token_ids: torch.Tensor,
        image_pad_embeds: torch.Tensor,
    ) -> None:
        pads = image_pad_token_ids.shape[0]
        launch(
            _replace, (input_ids.shape[0], cdiv(hidden, block)), input_embeds, input_ids, images_embeds,
            image_token_id, image_token_offset, image_pad_token_ids, image_pad_embeds, images_embeds.shape[0], pads,
            input_embeds.stride(0), HIDDEN=hidden, PADS=max(next_power_of_2(pads), 8), BLOCK=block,
        )  # fmt: skip

    return run


@triton.jit
def _half_to_even(gap):
    """round(gap / 2), ties to the even one; gap may be negative."""
    half = gap >> 1
    return half + (gap & 1) * (half & 1)


@triton.jit
def _image_of(starts, n_images, place, CHUNK: tl.constexpr):
    """How many images end at or before `place`: the image it is in; n_images where it is beyond all."""
    found = 0
    for first in range(0, n_images, CHUNK):
        lane = first + tl.arange(0, CHUNK)
        end = tl.load(starts + 1 + lane, mask=lane < n_images, other=2147483647)
        found += tl.sum((end <= place).to(tl.int32), axis=0)
    return found


@triton.jit(do_not_specialize=["n_images", "n_bytes"])
def _patches(raw, cu_raw, sizes, crops, cu_vit, mean, std, pad_color, output, n_images, n_bytes,
             P: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    patch = tl.program_id(0)
    image = _image_of(cu_vit, n_images, patch, 512)
    if image < n_images:
        columns, rows = tl.load(crops + image * 2), tl.load(crops + image * 2 + 1)
        width, height = tl.load(sizes + image * 2), tl.load(sizes + image * 2 + 1)
        local = patch - tl.load(cu_vit + image)
        begin, end = tl.load(cu_raw + image), tl.minimum(tl.load(cu_raw + image + 1), n_bytes)
        lane = tl.arange(0, BLOCK)
        x = (local % columns) * P + lane % P - _half_to_even(columns * P - width)
        y = (local // columns) * P + lane // P - _half_to_even(rows * P - height)
        real = (lane < P * P) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
        first = begin + (y.to(tl.int64) * width + x) * 3
        into = output + patch.to(tl.int64) * (3 * P * P) + lane
        for channel in tl.static_range(3):
            there = real & (first >= 0) & (first + channel < end)
            byte = tl.load(raw + first + channel, mask=there, other=0).to(tl.float32)
            value = tl.where(there, byte, pad_color)
            scaled = tl.div_rn(value, tl.full([BLOCK], 255.0, tl.float32)) - mean
            normal = tl.div_rn(scaled, tl.full([BLOCK], 0.0, tl.float32) + std)
            tl.store(into + channel * P * P, narrow(normal), mask=lane < P * P)


@functools.cache
def rgb_pad_to_patches_tl(patch_size: int) -> Kernel:
    """Each image centred in its grid, normalised, cut into patches. Rows of output beyond the grids stay."""
    block = next_power_of_2(patch_size * patch_size)

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
        launch(
            _patches, (output.shape[0],), image_raw_concat, cu_raw_bytes, image_real_sizes, images_spatial_crop,
            cu_seqlens_vit, mean, std, pad_color, output, image_real_sizes.shape[0], image_raw_concat.shape[0],
            P=patch_size, BLOCK=block, num_warps=max(1, min(4, block // 64)), enable_fp_fusion=False,
        )  # fmt: skip

    return run


@triton.jit
def _window(ids, crops, cu_windows, cu_patches, window, n_images, R: tl.constexpr):
    """Of a window: its image's first patch, width and height, and where the window begins in it; -1 wide if none."""
    image = tl.load(ids + window)
    known = (image >= 0) & (image < n_images)
    width = tl.load(crops + image * 2, mask=known, other=-1)
    height = tl.load(crops + image * 2 + 1, mask=known, other=-1)
    local = window - tl.load(cu_windows + image, mask=known, other=0)
    across = tl.maximum((width + R - 1) // R, 1)
    first = tl.load(cu_patches + image, mask=known, other=0)
    return first, width, height, local // across * R, local % across * R


@triton.jit(do_not_specialize=["n_patches", "n_images"])
def _concatenate(feature, ids, crops, cu_windows, cu_patches, out, n_patches, n_images,
                 R: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    window = tl.program_id(0).to(tl.int64)
    first, width, height, top, left = _window(ids, crops, cu_windows, cu_patches, window, n_images, R)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel, place = element // (R * R), element % (R * R)
    y, x = top + place // R, left + place % R
    row = first + y * width + x
    there = (element < DIM * R * R) & (y < height) & (x < width) & (row >= 0) & (row < n_patches)
    value = tl.load(feature + row * DIM + channel, mask=there, other=0.0)
    tl.store(out + window * (DIM * R * R) + element, value, mask=element < DIM * R * R)


@triton.jit(do_not_specialize=["n_patches", "n_images"])
def _mean(feature, ids, crops, cu_windows, cu_patches, out, n_patches, n_images,
          R: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    window = tl.program_id(0).to(tl.int64)
    first, width, height, top, left = _window(ids, crops, cu_windows, cu_patches, window, n_images, R)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    count = 0
    for place in tl.static_range(R * R):
        y, x = top + place // R, left + place % R
        row = first + y * width + x
        there = (y < height) & (x < width) & (row >= 0) & (row < n_patches)
        count += there.to(tl.int32)
        value = tl.load(feature + row * DIM + channel, mask=(channel < DIM) & there, other=0.0)
        total += widen(value)
    inverse = tl.div_rn(tl.full([BLOCK], 1.0, tl.float32), tl.zeros([BLOCK], tl.float32) + tl.maximum(count, 1))
    mean = total * inverse
    if out.dtype.element_ty == tl.bfloat16:
        mean = narrow(mean)
    tl.store(out + window * DIM + channel, mean, mask=channel < DIM)


@functools.cache
def batch_downsample_tl(downsample_ratio: int, dim: int, do_downsample: bool, dtype: torch.dtype) -> Kernel:
    """Windows of r x r patches: their mean where do_downsample, else side by side, zeros beyond the image."""
    kernel = _mean if do_downsample else _concatenate
    width = dim if do_downsample else dim * downsample_ratio**2
    block = min(next_power_of_2(width), 1024)

    def run(
        images_feature: torch.Tensor,
        images_id: torch.Tensor,
        images_spatial_crop: torch.Tensor,
        cu_seqlen_downsp: torch.Tensor,
        cu_seqlen: torch.Tensor,
        images_embeds: torch.Tensor | None,
        images_embeds_sum: torch.Tensor | None,
    ) -> None:
        launch(
            kernel, (images_id.shape[0], cdiv(width, block)), images_feature, images_id, images_spatial_crop,
            cu_seqlen_downsp, cu_seqlen, images_embeds_sum if do_downsample else images_embeds,
            images_feature.shape[0], images_spatial_crop.shape[0], R=downsample_ratio, DIM=dim, BLOCK=block,
        )  # fmt: skip

    return run
