"""The shim of CUDA 12: CUDA 13's call of cudaMemcpyBatchAsync compiles with it, and arrives as CUDA 12 wants it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from build.cache import REPOSITORY

SHIM = REPOSITORY / "images/shims/cuda12_memcpy_batch.hpp"
# What the shim uses of CUDA's header, in the form of each major version; a call records what it was given.
COMMON = """
#pragma once
#include <cstddef>
typedef int cudaError_t;
typedef void* cudaStream_t;
struct cudaMemcpyAttributes { int flags; };
"""
HEADERS = {
    "12080": "inline std::size_t seen[3]; inline cudaError_t cudaMemcpyBatchAsync(void** dsts, void** srcs, "
    "std::size_t* sizes, std::size_t count, cudaMemcpyAttributes*, std::size_t*, std::size_t, std::size_t* failIdx, "
    "cudaStream_t) { *failIdx = 0; seen[0] = count; seen[1] = sizes[1]; seen[2] = dsts[0] == srcs[1]; return 7; }",
    "13000": "inline std::size_t seen[3]; inline cudaError_t cudaMemcpyBatchAsync(void* const* dsts, "
    "const void* const* srcs, const std::size_t* sizes, std::size_t count, cudaMemcpyAttributes*, std::size_t*, "
    "std::size_t, cudaStream_t) "
    "{ seen[0] = count; seen[1] = sizes[1]; seen[2] = dsts[0] == srcs[1]; return 7; }",
}
HEADERS["12090"] = HEADERS["12080"]
CALL = """
#include <cuda_runtime_api.h>
#include <vector>
int main() {
    char a, b;
    const std::vector<void*> dsts{&a, &b}, srcs{&b, &a};
    const std::vector<std::size_t> sizes{3, 5};
    cudaMemcpyAttributes attributes{};
    std::size_t index = 0;
    cudaError_t status = cudaMemcpyBatchAsync(dsts.data(), srcs.data(), sizes.data(), dsts.size(), &attributes, &index,
                                              1, nullptr);
    return status == 7 && seen[0] == 2 && seen[1] == 5 && seen[2] == 1 ? 0 : 1;
}
"""


def compiled(folder: Path, version: str, *, shim: bool) -> subprocess.CompletedProcess[str]:
    """Compile CALL against a stand-in of that CUDA's header."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    header = f"{COMMON}#define CUDART_VERSION {version}\n{HEADERS[version]}\n"
    (folder / "cuda_runtime_api.h").write_text(header)
    (folder / "call.cpp").write_text(CALL)
    included = ["-include", str(SHIM)] if shim else []
    argv = [compiler, "-std=c++17", "-Wall", "-Werror", f"-I{folder}", *included, "-o", folder / "call", "call.cpp"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("version", ["12080", "12090", "13000"])
def test_the_call_arrives_whole(tmp_path: Path, version: str) -> None:
    done = compiled(tmp_path, version, shim=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "call"], check=False).returncode == 0


def test_without_the_shim_cuda_12_refuses_the_call(tmp_path: Path) -> None:
    assert "cudaMemcpyBatchAsync" in compiled(tmp_path, "12090", shim=False).stderr


def test_a_c_source_is_left_alone(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc here")
    (tmp_path / "plain.c").write_text("int main(void) { return 0; }\n")
    argv = [compiler, "-include", str(SHIM), "-o", tmp_path / "plain", tmp_path / "plain.c"]
    subprocess.run(argv, check=True, capture_output=True)
