"""Small arrays of the host, brought to a device in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 16
"""Bytes that every array begins at a multiple of: kernels are compiled for pointers that are."""


def to_device(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, torch.Tensor]:
    """The arrays as contiguous tensors of their shapes and types, all in one buffer and by one copy.

    The copy does not wait for the device: the buffer on the host is pinned and made anew each time.
    """
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays.values()]
    host = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    view = host.numpy()
    offset = 0
    for array, size in zip(arrays.values(), sizes, strict=True):
        view[offset : offset + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        offset += size
    moved = host.to(device, non_blocking=True)
    found, offset = {}, 0
    for (name, array), size in zip(arrays.items(), sizes, strict=True):
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        found[name] = moved[offset : offset + array.nbytes].view(dtype).view(array.shape)
        offset += size
    return found
