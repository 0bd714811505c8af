"""Reference of `detect_outlier_and_abort_tl` (kernel_spec A.19)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def detect_outlier_and_abort_tl(dtype: torch.dtype, max_abs: float = 1e11) -> Kernel:
    """Raise RuntimeError with id, value and offset at the first NaN or |value| >= max_abs; waits for the device."""

    def run(data: torch.Tensor, id: int) -> None:
        value = data.float()
        bad = (value.isnan() | (value.abs() >= max_abs)).nonzero()
        if bad.shape[0]:
            offset = int(bad[0, 0])
            raise RuntimeError(f"outlier: id {id}, value {float(value[offset])}, offset {offset}")

    return run
