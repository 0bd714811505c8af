"""The KV caches' formats: what a token's record holds and where it lies (kernel_spec 0.3).

A paged cache is uint8 [num_blocks, block_size, 1, bytes_per_token]. Its block stride may exceed a block's bytes (a
slice of a larger pool) and its storage offset may be anything. In an interleaved format each token's values are
followed by its scales; in the others a block holds the values of all its tokens and then their scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

SF_DTYPES = {"ue8m0": torch.uint8, "e4m3": torch.float8_e4m3fn, "fp32": torch.float32}
QUANTIZED_DTYPES = {"e2m1": torch.int8, "e4m3": torch.float8_e4m3fn}
"""e2m1: two values a byte, the even one in the low half."""


@dataclass(frozen=True)
class KVCacheFormat:
    """One format.

    quantized_dtype: "e2m1" or "e4m3", with `quantized_elements` values a token and a scale in `sf_format` ("ue8m0",
    "e4m3", "fp32") for each `elements_per_sf`; None: `bf16_elements` bfloat16 values and no scales.
    do_cast: loads give dequantised bfloat16 (main and SWA caches) or the stored values and scales (index caches).
    """

    quantized_dtype: str | None
    quantized_elements: int
    elements_per_sf: int
    bf16_elements: int
    do_cast: bool
    sf_format: str | None
    note: str
    token_interleaved: bool

    def __post_init__(self) -> None:
        if self.quantized_dtype is None:
            sound = self.quantized_elements == 0 and self.sf_format is None and self.bf16_elements > 0
        else:
            sound = self.quantized_dtype in QUANTIZED_DTYPES and self.sf_format in SF_DTYPES
            sound = sound and self.bf16_elements == 0 and self.quantized_elements % max(self.elements_per_sf, 1) == 0
            sound = sound and self.elements_per_sf > 0 and (self.token_interleaved or not self.do_cast)
        if not sound:
            raise ValueError(f"KVCacheFormat: the fields contradict each other: {self}")

    @property
    def elements(self) -> int:
        """Values a token."""
        return self.quantized_elements or self.bf16_elements

    @property
    def value_bytes(self) -> int:
        """Bytes of a token's values."""
        if self.quantized_dtype is None:
            return 2 * self.bf16_elements
        return self.quantized_elements // (2 if self.quantized_dtype == "e2m1" else 1)

    @property
    def scales(self) -> int:
        """Scales a token."""
        return 0 if self.quantized_dtype is None else self.quantized_elements // self.elements_per_sf

    @property
    def sf_bytes(self) -> int:
        """Bytes of a token's scales."""
        return 0 if self.sf_format is None else self.scales * SF_DTYPES[self.sf_format].itemsize

    @property
    def round_sf(self) -> bool:
        """Whether scales are powers of two: all but those in e4m3."""
        return self.sf_format != "e4m3"

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token, values and scales."""
        return self.value_bytes + self.sf_bytes

    @property
    def stride_alignment(self) -> int:
        """What block strides, in bytes, are multiples of where views of the cache are to be typed."""
        return math.gcd(32, self.bytes_per_token) if self.token_interleaved else 32

    def block_stride(self, block_size: int) -> int:
        """Bytes between two blocks as `alloc_kv_cache` lays them out."""
        step = math.lcm(32, self.bytes_per_token) if self.token_interleaved else 32
        return -(-block_size * self.bytes_per_token // step) * step


V41_FORMAT = KVCacheFormat("e4m3", 512, 32, 0, True, "ue8m0", "V4.1 main and SWA, FP8", True)
V41_FP4_FORMAT = KVCacheFormat("e2m1", 512, 16, 0, True, "e4m3", "V4.1 main, FP4", True)
FP4_INDEX_KV_FORMAT = KVCacheFormat("e2m1", 128, 32, 0, False, "ue8m0", "index, FP4", False)
FP8_FLOAT32_SF_INDEX_KV_FORMAT = KVCacheFormat("e4m3", 128, 128, 0, False, "fp32", "index, FP8, float scales", False)
MXFP8_INDEX_KV_FORMAT = KVCacheFormat("e4m3", 128, 32, 0, False, "ue8m0", "index, MXFP8", False)
FORMATS = (
    V41_FORMAT,
    V41_FP4_FORMAT,
    FP4_INDEX_KV_FORMAT,
    FP8_FLOAT32_SF_INDEX_KV_FORMAT,
    MXFP8_INDEX_KV_FORMAT,
)


class KVCacheTensors(NamedTuple):
    """What a cache or a load of it holds: values and scales, or bfloat16 alone; what there is not is None."""

    quantized_data: torch.Tensor | None
    sf_data: torch.Tensor | None
    bf16_data: torch.Tensor | None


def bf16_format(elements: int) -> KVCacheFormat:
    """The plain format: `elements` bfloat16 values a token, cache [num_blocks, block_size, heads, elements / heads]."""
    return KVCacheFormat(None, 0, 0, elements, True, None, f"bfloat16, {elements} values", True)


def alloc_kv_cache(
    layout: KVCacheFormat, num_blocks: int, block_size: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """An uninitialised cache of a quantised format, uint8 [num_blocks, block_size, 1, bytes_per_token]."""
    if layout.quantized_dtype is None or num_blocks < 0 or block_size <= 0:
        raise ValueError(f"alloc_kv_cache: no cache of {num_blocks} blocks of {block_size} tokens in {layout.note}")
    stride = layout.block_stride(block_size)
    pool = torch.empty(num_blocks * stride, dtype=torch.uint8, device=device)
    width = layout.bytes_per_token
    return pool.as_strided((num_blocks, block_size, 1, width), (stride, width, width, 1))


def infer_format(
    kv_cache: torch.Tensor, *, sf_format: str | None = None, layout: KVCacheFormat | None = None
) -> KVCacheFormat:
    """The format of a cache, by its bytes a token; `layout` states it, and is checked.

    Args:
        sf_format: tells formats with as many bytes a token apart (132: "fp32" or "ue8m0").

    Raises:
        ValueError: no format, or more than one, fits; or the cache does not fit `layout`.
    """
    shape, dtype = tuple(kv_cache.shape), str(kv_cache.dtype).removeprefix("torch.")
    found = f"the KV cache is {dtype} {list(shape)}"
    if layout is not None:
        if not _fits(kv_cache, layout):
            raise ValueError(f"{found}, which does not fit the layout {layout.note!r}")
        if sf_format is not None and sf_format != layout.sf_format:
            raise ValueError(f"the scales are {sf_format}, those of the layout {layout.note!r} {layout.sf_format}")
        return layout
    fitting = [one for one in FORMATS if _fits(kv_cache, one) and sf_format in (None, one.sf_format)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = " and ".join(f"{one.note!r} (sf_format={one.sf_format!r})" for one in fitting)
        raise ValueError(f"{found}, which fits {names}: give sf_format or layout")
    widths = ", ".join(str(width) for width in sorted({one.bytes_per_token for one in FORMATS}))
    raise ValueError(f"{found}; it must be uint8 [num_blocks, block_size, 1, bytes], bytes one of {widths}")


def _fits(kv_cache: torch.Tensor, layout: KVCacheFormat) -> bool:
    if kv_cache.dim() != 4:
        return False
    if layout.quantized_dtype is None:
        heads, width = kv_cache.shape[2:]
        return kv_cache.dtype == torch.bfloat16 and heads * width == layout.bf16_elements
    return kv_cache.dtype == torch.uint8 and tuple(kv_cache.shape[2:]) == (1, layout.bytes_per_token)


def split_kv_cache(kv_cache: torch.Tensor, layout: KVCacheFormat) -> KVCacheTensors:
    """Typed views of a cache, each [num_blocks, block_size, n], the last dimension contiguous.

    quantized_data: int8 (e2m1, two a byte) or float8_e4m3fn. sf_data: uint8 (ue8m0), float8_e4m3fn or float32.
    A cache in bfloat16 gives bf16_data only.

    Raises:
        ValueError: the cache does not fit the format, its tokens are not laid out as the format says, or its stride
            between blocks or its offset do not allow a view of the scales' type.
    """
    infer_format(kv_cache, layout=layout)
    blocks, size = kv_cache.shape[:2]
    block_stride = kv_cache.stride(0)
    width = layout.bytes_per_token // kv_cache.element_size()
    if kv_cache.numel() and not kv_cache[:1].is_contiguous():
        raise ValueError(f"the KV cache's tokens must be dense, {width} apart; its strides are {kv_cache.stride()}")
    start = kv_cache.storage_offset()
    if layout.quantized_dtype is None:
        return KVCacheTensors(None, None, kv_cache.as_strided((blocks, size, width), (block_stride, width, 1), start))
    if layout.token_interleaved:
        steps, offset = (width, width), layout.value_bytes
    else:
        steps, offset = (layout.value_bytes, layout.sf_bytes), size * layout.value_bytes
    values = kv_cache.as_strided((blocks, size, layout.value_bytes), (block_stride, steps[0], 1), start)
    scales = kv_cache.as_strided((blocks, size, layout.sf_bytes), (block_stride, steps[1], 1), start + offset)
    sf_dtype = SF_DTYPES[layout.sf_format or ""]
    if (start + offset) % sf_dtype.itemsize or block_stride % sf_dtype.itemsize:
        raise ValueError(f"the KV cache's offset {start} and block stride {block_stride} do not fit {sf_dtype} scales")
    return KVCacheTensors(values.view(QUANTIZED_DTYPES[layout.quantized_dtype]), scales.view(sf_dtype), None)
