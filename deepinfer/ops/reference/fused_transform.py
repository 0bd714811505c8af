"""Reference of `fused_norm_rope_hadamard_cast_store_kvcache_tl` (kernel_spec A.13)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.formats import KVCacheFormat
from deepinfer.ops.reference.quantize import dequantize, fused_multiply_add, quantize
from deepinfer.ops.reference.rms import reciprocal_root
from deepinfer.ops.reference.store_kv_cache import store


@functools.cache
def fused_norm_rope_hadamard_cast_store_kvcache_tl(
    num_heads: int,
    head_dim: int,
    *,
    do_norm: bool = False,
    norm_eps: float = 1e-6,
    do_rope: bool = False,
    rotary_dim: int = 0,
    rope_offset: int = 0,
    positions_dtype: str = "int32",
    is_neox: bool = False,
    conjugate: bool = False,
    do_hadamard: bool = False,
    hadamard_scale: float = 1.0,
    cast_fmt: str = "",
    num_per_channels: int = 0,
    round_sf: bool = False,
    sf_format: str = "",
    return_bf16: bool = False,
    bf16_stage: str = "transform",
    return_quant: bool = False,
    cache_layout: KVCacheFormat | None = None,
    block_size: int = 0,
    small_batch: bool = False,
) -> Kernel:
    """Norm, rotation, Hadamard transform, cast and store of rows, each of them optional.

    small_batch is upstream's tuning and changes nothing.
    """

    def run(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        positions: torch.Tensor | None,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        out_bf16: torch.Tensor | None,
        out_quant: torch.Tensor | None,
        out_sf: torch.Tensor | None,
        cache_quant: torch.Tensor | None,
        cache_sf: torch.Tensor | None,
        slot_mapping: torch.Tensor | None,
    ) -> None:
        w = x
        if do_norm and weight is not None:
            v = x.float()
            w = (v * reciprocal_root(v, norm_eps).unsqueeze(-1) * weight.float()).bfloat16()
        stages = {"norm": w}
        if do_rope and positions is not None and cos is not None and sin is not None:
            w = rotate(w, positions, cos, -sin if conjugate else sin, rope_offset, is_neox)
        if do_hadamard:
            w = (hadamard(w.float()) * torch.full((), hadamard_scale, device=x.device)).bfloat16()
        stages["transform"] = w
        if cast_fmt:
            values, scales = quantize(w, cast_fmt, num_per_channels, round_sf, sf_format)
            stages["cast_back"] = dequantize(values, scales).bfloat16()
            if return_quant and out_quant is not None and out_sf is not None:
                out_quant.copy_(values)
                out_sf.copy_(scales)
            if cache_quant is not None and cache_sf is not None and slot_mapping is not None:
                store(values[:, 0], cache_quant, slot_mapping)
                store(scales[:, 0], cache_sf, slot_mapping)
        if return_bf16 and out_bf16 is not None:
            out_bf16.copy_(stages[bf16_stage])

    return run


def rotate(
    w: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, offset: int, is_neox: bool
) -> torch.Tensor:
    """Rotate the columns from `offset` on, in pairs, by their row's position; rows of positions without a table stay.

    Args:
        w: [n, heads, head_dim] bfloat16.
        positions: [n] of an integer type.
        cos, sin: [P, pairs] float32.
        is_neox: pair j is (j, j + pairs), else (2j, 2j + 1).
    """
    inside = (positions >= 0) & (positions < cos.shape[0])
    row = torch.where(inside, positions, 0).long()
    c, s = (table[row][:, None] for table in (cos, sin))
    pairs = cos.shape[1]
    tail = w[..., offset:].float()
    a, b = (tail[..., :pairs], tail[..., pairs:]) if is_neox else (tail[..., 0::2], tail[..., 1::2])
    turned = (fused_multiply_add(a, c, -(b * s)), fused_multiply_add(a, s, b * c))
    joined = torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2)
    result = w.clone()
    result[..., offset:] = torch.where(inside[:, None, None], joined.bfloat16(), w[..., offset:])
    return result


def hadamard(v: torch.Tensor) -> torch.Tensor:
    """The Walsh-Hadamard transform in natural order of the last dimension, a power of two, by additions in float32."""
    width = v.shape[-1]
    stride = 1
    while stride < width:
        pairs = v.reshape(*v.shape[:-1], width // (2 * stride), 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        v = torch.stack((low + high, low - high), dim=-2).reshape(v.shape)
        stride *= 2
    return v
