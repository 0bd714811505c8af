"""DeepGEMM (the module deep_gemm): whether it can be used here, and its products.

Its kernels are compiled when they are first called, for each shape of a weight and a few ranges of rows, and kept in
DG_JIT_CACHE_DIR.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

import torch

from deepinfer import envs
from deepinfer.environment import toolchain
from deepinfer.environment.children import examine
from deepinfer.errors import DeepInferError, OptionError, UsageError, shown
from deepinfer.model.per128 import Per128, WideProducts
from deepinfer.model.products import EXACT, Products
from deepinfer.ops.per128 import PerWide

Gemm = Literal["exact", "deep_gemm"]
GEMMS: tuple[Gemm, ...] = ("exact", "deep_gemm")
CAPABILITY = (9, 0)
_TIMEOUT_S = 120.0
_LEAVE_OUT = "leave --gemm out: exact products need nothing more"


def products_of(gemm: Gemm, device: torch.device) -> Products:
    """How weights are multiplied on a device.

    Raises:
        ValueError: `gemm` is none of GEMMS.
        UsageError: DEEPINFER_BATCH_INVARIANT=1 asks for what DeepGEMM does not promise.
        DeepInferError: DeepGEMM cannot be used here; the message says why, and what to do.
    """
    if gemm not in GEMMS:
        raise OptionError("gemm", f"must be {' or '.join(GEMMS)}, not {shown(gemm)}")
    if gemm == "exact":
        return EXACT
    require(device)
    return WideProducts(DeepGemm())


def require(device: torch.device) -> None:
    """See `products_of`. Weights are not touched, and DeepGEMM is imported in a process of its own."""
    if envs.BATCH_INVARIANT.get():
        raise UsageError(
            "--gemm deep_gemm does not go with DEEPINFER_BATCH_INVARIANT=1",
            cause="DeepGEMM chooses its tiles by the number of rows, and promises no bits of a row in other batches",
            next_step=f"unset the variable, or {_LEAVE_OUT}",
        )
    if device.type != "cuda" or not torch.cuda.is_available():
        where = "PyTorch sees none" if device.type == "cuda" else f"the model is to run on {device}"
        raise DeepInferError(
            f"--gemm deep_gemm needs a Hopper GPU, and {where}",
            cause="the driver sees no GPU, or --device names something else",
            next_step=f"`deepinfer env` shows GPUs and driver; {_LEAVE_OUT}",
        )
    found = torch.cuda.get_device_capability(device)
    if found != CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise DeepInferError(
            f"--gemm deep_gemm needs a GPU of compute capability 9.0 (H20, H100, H200), and {name} has "
            f"{found[0]}.{found[1]}",
            cause="its products with a scale per 128 values are Hopper's",
            next_step=_LEAVE_OUT,
        )
    row = examine("deep_gemm", _TIMEOUT_S)
    if row["status"] == "absent":
        raise DeepInferError(
            f"--gemm deep_gemm needs DeepGEMM, which is not here: {row['reason']}",
            cause="it is no part of the wheel: the images that `./run build` makes have it in /opt/deepinfer/site",
            next_step=f"use such an image, or {_LEAVE_OUT}",
        )
    if row["status"] != "present":
        raise DeepInferError(
            f"--gemm deep_gemm needs DeepGEMM, which is here and cannot be used: {row['reason']}",
            cause="it was built for another torch or CUDA, or another deep_gemm lies first on the search path",
            next_step=f"`deepinfer env` shows which is found; {_LEAVE_OUT}",
        )
    if problem := toolchain.find().problem:
        raise DeepInferError(
            f"--gemm deep_gemm cannot compile DeepGEMM's kernels: {problem}",
            cause="they are compiled when they are first called",
            next_step=f"set CUDA_HOME to a CUDA tool chain of 12.9 or newer; `deepinfer env` shows what is found. Or "
            f"{_LEAVE_OUT}",
        )


class DeepGemm:
    """See `per128.Library`."""

    def __init__(self) -> None:
        self._module = importlib.import_module("deep_gemm")

    def linear(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        _call(self._module.fp8_gemm_nt, tuple(rows), tuple(weight), out)

    def grouped(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        if out.numel():
            _call(self._module.fp8_einsum, "bhr,hdr->bhd", tuple(rows), tuple(weight), out)

    def experts(
        self, rows: PerWide, weight: Per128, ends: torch.Tensor, alignment: int, expected: int, out: torch.Tensor
    ) -> None:
        # A setting of the whole library, read on the host by the call below.
        self._module.set_mk_alignment_for_contiguous_layout(alignment)
        _call(
            self._module.m_grouped_fp8_gemm_nt_contiguous,
            *(tuple(rows), tuple(weight), out, ends),
            use_psum_layout=True,
            expected_m_for_psum_layout=expected,
        )


def _call(function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call the library. A compilation that fails, say for a full disk, is told in words."""
    try:
        function(*arguments, **named)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        first = next(iter(str(problem).strip().splitlines()), "no message")
        raise DeepInferError(
            f"DeepGEMM's {function.__name__} failed: {first}",
            cause="its kernel could not be compiled or started",
            next_step=f"`deepinfer env` shows the tool chain and the folder of compiled kernels; {_LEAVE_OUT}",
        ) from problem
