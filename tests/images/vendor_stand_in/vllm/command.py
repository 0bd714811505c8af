"""`vllm serve`: says as JSON which files it works with, and ends."""

from __future__ import annotations

import ctypes
import json
import os
import sys

import vllm


def deep_gemm_file() -> str | None:
    """The DeepGEMM in use: one that can be imported at the top wins over the vendor's own."""
    try:
        import deep_gemm
    except ImportError:
        from vllm.third_party import deep_gemm
    return deep_gemm.__file__


def nccl_version() -> int:
    """The version of the NCCL that a process finds by name alone."""
    version = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value


def main() -> None:
    """Answer `serve MODEL`."""
    if sys.argv[1:2] != ["serve"]:
        raise SystemExit(f"usage: vllm serve MODEL, not {sys.argv[1:]}")
    import torch

    told = {
        "served": sys.argv[2:],
        "version": vllm.__version__,
        "torch": torch.__version__,
        "deep_gemm": deep_gemm_file(),
        "nccl": nccl_version(),
        "python": sys.executable,
        "started_by": getattr(sys, "vendor_start_up", None),
        "uid": os.getuid(),
        "ours": sorted(name for name in sys.modules if name.partition(".")[0] in ("deepinfer", "deep_ep")),
    }
    print(json.dumps(told))
