"""A stand-in for Triton's CUDA driver, and for the CUDA library, on a machine that has neither GPU nor driver.

Kernels are compiled for the target that the driver names, under the same key as on a GPU. The C modules that Triton
builds at the first launch are linked with libcuda.so.1 by name and loaded at once: a library of that name which has all
of its functions, each answering "no device", lets both happen. Nothing that is built refers to where it lay.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer import envs

LIBRARY = "libcuda.so.1"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_\w+\(\s*)?(cu[A-Z]\w*)", re.MULTILINE)
HOPPER_SHARED_MEMORY = 232448
"""Bytes of shared memory that one block may have on sm_90."""


class NoModulesError(Exception):
    """Why Triton's C modules cannot be built here."""


class HopperDriver:
    """What Triton asks of its driver: the target. `launches` counts the launches, none of which does anything."""

    def __init__(self) -> None:
        self.launches = 0
        self.utils: Any = _NoUtils()
        self.launcher_cls: Any = None

    def get_current_target(self) -> Any:
        """Hopper, as the real driver names it."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        """The default stream."""
        return 0

    def with_modules(self) -> HopperDriver:
        """The same with Triton's C modules, built or taken from the cache. Raises what building them raises."""
        from triton.backends.nvidia import driver

        nvidia: Any = driver  # untyped
        self.utils = _Utils(nvidia.CudaUtils())

        def launcher(source: Any, metadata: Any) -> Any:
            nvidia.CudaLauncher(source, metadata)
            return self._launch_nothing

        self.launcher_cls = launcher
        return self

    def _launch_nothing(self, *arguments: Any, **named: Any) -> None:
        self.launches += 1


class _NoUtils:
    """Answers for the functions of `cuda_utils` that a launch needs."""

    def get_device_properties(self, device: int) -> Mapping[str, int]:
        return {"max_shared_mem": HOPPER_SHARED_MEMORY, "multiprocessor_count": 132}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, most threads of a block)."""
        return 1, 1, 0, 0, 1024


class _Utils(_NoUtils):
    """The same before the real `cuda_utils`, which has what launchers are made with."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def provide_cuda(folder: Path) -> None:
    """Make libcuda.so.1 known to Triton and to this process's loader: this machine's, or a stand-in made in `folder`.

    Raises NoModulesError if there is no compiler, it fails, or `folder` allows no programs.
    """
    from triton import knobs

    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        library = _make_library(folder)
        # A module that NEEDS libcuda.so.1 gets the one of that name which is there already.
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as problem:  # a temporary folder that is mounted noexec, as `docker run --tmpfs /tmp` does
            raise NoModulesError(f"a library in the temporary folder cannot be loaded: {problem}") from problem
        knobs.nvidia.libcuda_path = str(folder)


def _make_library(folder: Path) -> Path:
    from triton.backends.nvidia import driver as nvidia

    compiler = envs.read(envs.CC) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoModulesError("there is no C compiler, which Triton needs at the first launch (gcc, clang, or CC)")
    header = Path(str(nvidia.__file__)).with_name("include") / "cuda.h"
    try:
        names = cuda_functions(header.read_text())
    except OSError as problem:
        raise NoModulesError(f"Triton's cuda.h cannot be read: {problem}") from problem
    source, library = folder / "cuda.c", folder / LIBRARY
    source.write_text("".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in names))
    argv = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(source)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise NoModulesError(f"{compiler} cannot be started: {problem.strerror}") from problem
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NoModulesError(f"{compiler} failed: {last}")
    library.with_name("libcuda.so").symlink_to(library.name)  # the name that Triton 3.5 links with
    return library


def cuda_functions(header: str) -> list[str]:
    """The names of all functions of the driver's library that a program compiled with this cuda.h can ask for."""
    return sorted({*_DECLARED.findall(header), *_RENAMED.findall(header)})
