"""`copy_dflash_decode_input_tl` in Triton (kernel_spec A.8): all vectors in one launch."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from deepinfer.ops.dispatch import Kernel
from deepinfer.ops.launch import cdiv, launch

_BLOCK = 128


@triton.jit
def _fill(src, padding, dst, request, rs, rp, rd):
    """One vector."""
    value = tl.load(src + request, mask=request < rs, other=0)
    other = tl.load(padding + request - rs, mask=(request >= rs) & (request < rs + rp), other=0)
    tl.store(dst + request, tl.where(request < rs, value, other), mask=(request < rd) & (request < rs + rp))


@triton.jit(do_not_specialize=["rs", "rp", "rd"])
def _copy_dflash_decode_input(
    src0, src1, src2, src3, src4, src5, src6, src7, src8,
    padding0, padding1, padding2, padding3, padding4, padding5, padding6, padding7, padding8,
    dst0, dst1, dst2, dst3, dst4, dst5, dst6, dst7, dst8, rs, rp, rd, HAS_DRIVER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _fill(src0, padding0, dst0, request, rs, rp, rd)
    if HAS_DRIVER:
        _fill(src1, padding1, dst1, request, rs, rp, rd)
        _fill(src2, padding2, dst2, request, rs, rp, rd)
        _fill(src3, padding3, dst3, request, rs, rp, rd)
        _fill(src4, padding4, dst4, request, rs, rp, rd)
        _fill(src5, padding5, dst5, request, rs, rp, rd)
        _fill(src6, padding6, dst6, request, rs, rp, rd)
        _fill(src7, padding7, dst7, request, rs, rp, rd)
        _fill(src8, padding8, dst8, request, rs, rp, rd)


@functools.cache
def copy_dflash_decode_input_tl(has_driver_inputs: bool) -> Kernel:
    """dst = the first entries of (src, padding), for nine vectors, or for the first of them only."""

    def run(*arguments: torch.Tensor | None) -> None:
        vectors = [_integers(one) for one in arguments]
        rs, rp, rd = (one.shape[0] for one in vectors[::9] if one is not None)
        launch(
            _copy_dflash_decode_input,
            (cdiv(rd, _BLOCK),),
            *(*vectors, rs, rp, rd),
            HAS_DRIVER=has_driver_inputs,
            BLOCK=_BLOCK,
        )

    return run


def _integers(vector: torch.Tensor | None) -> torch.Tensor | None:
    """The same bits as signed integers: floats may be NaN, and seeds are unsigned."""
    return None if vector is None else vector.view(torch.int64 if vector.element_size() == 8 else torch.int32)
