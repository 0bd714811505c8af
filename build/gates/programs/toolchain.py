"""Does the CUDA tool chain compile for sm_90a here, as this user? The same headers that the JIT compilers include."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <cuda/std/cstdint>
#include <cuda/std/utility>

extern "C" __global__ void scale(float* out, const __nv_fp8_e4m3* in, cuda::std::uint32_t count) {
    const cuda::std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    asm volatile("wgmma.fence.sync.aligned;");  // exists on sm_90a only
    if (i < count) out[i] = 2.0f * static_cast<float>(in[i]);
}
"""


def main(homes: list[str]) -> dict[str, Any]:
    """Compile SOURCE to a cubin with the first nvcc found in `homes` (CUDA_HOME folders)."""
    nvccs = [Path(home, "bin", "nvcc") for home in homes]
    nvcc = next((path for path in nvccs if path.exists()), None)
    if nvcc is None:
        return {"error": f"there is no nvcc: looked for {', '.join(map(str, nvccs))}", "nvcc": ""}
    if not os.access(nvcc, os.X_OK):
        return {"error": f"{nvcc} is not executable for this user", "nvcc": str(nvcc)}
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "gate.cu"), Path(folder, "gate.cubin")
        source.write_text(SOURCE)
        argv = [str(nvcc), "-std=c++17", "-arch=sm_90a", "-cubin", "-o", str(cubin), str(source)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        made = cubin.stat().st_size if cubin.exists() else 0
    version = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=False).stdout
    release = next((line.rpartition("V")[2] for line in version.splitlines() if "release" in line), "")
    error = "" if done.returncode == 0 and made else f"{' '.join(argv)}\n{done.stdout}{done.stderr}".strip()
    return {"error": error, "nvcc": str(nvcc), "version": release, "bytes": made}
