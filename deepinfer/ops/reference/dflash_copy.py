"""Reference of `copy_dflash_decode_input_tl` (kernel_spec A.8)."""

from __future__ import annotations

import functools

import torch

from deepinfer.ops.dispatch import Kernel


@functools.cache
def copy_dflash_decode_input_tl(has_driver_inputs: bool) -> Kernel:
    """dst = the first entries of (src, padding), for nine vectors, or for the first of them only."""

    def run(*arguments: torch.Tensor | None) -> None:
        count = 9 if has_driver_inputs else 1
        for src, padding, dst in zip(
            arguments[:count], arguments[9 : 9 + count], arguments[18 : 18 + count], strict=True
        ):
            assert src is not None and padding is not None and dst is not None
            filled = torch.cat([src.view(torch.int32), padding.view(torch.int32)])  # any width, copied bit by bit
            whole = dst.view(torch.int32)
            length = min(filled.shape[0], whole.shape[0])
            whole[:length] = filled[:length]

    return run
