"""Reference of `norm_tl` (kernel_spec A.14)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.reference.quantize import quantize
from deepinfer.ops.reference.rms import reciprocal_root

TYPES = {"bfloat16": torch.bfloat16, "float": torch.float32}


@functools.cache
def norm_tl(
    d: int,
    dtype: str,
    return_dtype: str,
    reduce_dtype: str = "float",
    has_residual: bool = False,
    eps: float = 1e-6,
    out_scale: float = 1.0,
    do_fp8_cast: bool = False,
    num_per_channels: int = 0,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    return_origin_out: bool = False,
    xdim: int = 3,
    shared_sf_block_m: int = 0,
    x_stride_s: int = 0,
    y_stride_s: int = 0,
    residual_stride_s: int = 0,
    residual_out_stride_s: int = 0,
    y_origin_stride_s: int = 0,
    sf_stride_s: int = 0,
) -> Kernel:
    """RMS norm of rows, with a sum before it and a cast to e4m3 after it.

    The strides are upstream's; the tensors' own are used. use_tma_aligned_col_major_sf: likewise told by sf's strides.
    """

    def run(
        x: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor,
        residual: torch.Tensor,
        residual_out: torch.Tensor,
        sf: torch.Tensor,
        shared_sf: torch.Tensor,
        y_origin: torch.Tensor,
    ) -> None:
        if has_residual:
            x = x + residual
            residual_out.copy_(x)
        v = x.float()
        scale = torch.full((), out_scale, dtype=torch.float32, device=x.device)
        out = v * reciprocal_root(v, eps).unsqueeze(-1) * (w.float() * scale)
        if not do_fp8_cast:
            y.copy_(out.to(y.dtype))
            return
        origin = out.to(TYPES[dtype])
        if return_origin_out:
            y_origin.copy_(origin)
        sf_format = "ue8m0" if use_packed_ue8m0 else "fp32"
        values, scales = quantize(origin, "e4m3", num_per_channels, round_sf, sf_format)
        y.copy_(values)
        if use_packed_ue8m0:
            _store_packed(scales, sf)
        else:
            sf.copy_(scales)
        if shared_sf_block_m:
            _store_shared(quantize(origin, "e4m3", num_per_channels, True, "ue8m0")[1][0], shared_sf, shared_sf_block_m)

    return run


def _store_packed(scales: torch.Tensor, sf: torch.Tensor) -> None:
    """uint8 [B, M, G] -> the bytes of int32 [B, M, ceil(G / 4)] of any strides, group 0 lowest; others stay."""
    groups = scales.shape[-1]
    for group in range(groups):
        shift = 8 * (group % 4)
        word = sf[..., group // 4].long()
        word = word & ~(0xFF << shift) | scales[..., group].long() << shift
        sf[..., group // 4] = word.to(torch.uint32).view(torch.int32)


def _store_shared(scales: torch.Tensor, shared_sf: torch.Tensor, block_m: int) -> None:
    """uint8 [M, G] -> uint8 [rows, G / 4, 4], each token at its row."""
    token = torch.arange(scales.shape[0], device=scales.device)
    within = token % block_m
    aligned = -(-block_m // 128) * 128
    row = token // block_m * aligned + within // 128 * 128 + within % 32 * 4 + within % 128 // 32
    for group in range(scales.shape[1]):
        shared_sf[row, group // 4, group % 4] = scales[:, group]
