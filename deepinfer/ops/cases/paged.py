"""What cases of paged caches share: caches inside of larger buffers, and slots."""

from __future__ import annotations

import torch

from deepinfer.ops.formats import KVCacheFormat, KVCacheTensors, split_kv_cache

JUNK = 0xA5


def cache(
    layout: KVCacheFormat,
    blocks: int,
    block_size: int,
    *,
    block_stride: int = 0,
    generator: torch.Generator | None = None,
) -> KVCacheTensors:
    """Views of a cache that starts 64 bytes into a buffer and whose blocks lie `block_stride` bytes apart.

    block_stride 0: three times what a block needs. The buffer holds junk, or random bytes with a generator.
    """
    dense = layout.block_stride(block_size)
    stride = block_stride or 3 * dense
    size = 64 + blocks * stride
    pool = torch.full((size,), JUNK, dtype=torch.uint8)
    if generator is not None:
        pool = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    if layout.quantized_dtype is None:
        width = layout.bf16_elements
        view = pool.view(torch.bfloat16).as_strided((blocks, block_size, 1, width), (stride // 2, width, width, 1), 32)
    else:
        width = layout.bytes_per_token
        view = pool.as_strided((blocks, block_size, 1, width), (stride, width, width, 1), 64)
    return split_kv_cache(view, layout)


def slots(generator: torch.Generator, kind: str, count: int, room: int, block_size: int) -> torch.Tensor:
    """int32 [count] of different slots below `room`, every 7th -1.

    kind: "random", "continuous", "cross-page" (from the last place of a block on), "invalid" (half of them negative
    or too large).
    """
    if kind == "continuous":
        chosen = torch.arange(count)
    elif kind == "cross-page":
        chosen = torch.arange(count) + block_size - 1
    else:
        chosen = torch.randperm(room, generator=generator)[:count]
    chosen[6::7] = -1
    if kind == "invalid":
        chosen[::4], chosen[1::4] = room + torch.arange(len(chosen[::4])), -2 - torch.arange(len(chosen[1::4]))
        chosen[2::8] = 2**31 - 1
    return chosen.int()


def rows(generator: torch.Generator, count: int, width: int, stride: int) -> torch.Tensor:
    """bfloat16 [count, width] of rows `stride` apart: of all sizes, with zeros of both signs and a row of zeros."""
    x = torch.randn(count, stride, generator=generator)
    x *= torch.randint(-12, 13, (count, 1), generator=generator).float().exp2()
    x[torch.rand(x.shape, generator=generator) < 0.1] = -0.0
    x[1:2] = 0
    return x.bfloat16()[:, :width]
