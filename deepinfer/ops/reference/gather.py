"""Reference of `gather_tl` (kernel_spec A.10)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def gather_tl(D: int, dtype: torch.dtype, index_dtype: torch.dtype, x_stride: int, threads: int = 256) -> Kernel:
    """Y[i] = X[INDEX[i]], zeros where the index is out of range. D: elements a row; x_stride: X's row stride."""

    def run(x: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> None:
        inside = (index >= 0) & (index < x.shape[0])
        y.zero_()
        y[inside] = x[index[inside].long()]

    return run
