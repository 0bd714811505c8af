"""The compilers that DeepGEMM's and DeepEP's JIT call, found in the order in which they look."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deepinfer import envs

USUAL_CUDA = Path("/usr/local/cuda")
OLDEST_NVCC = (12, 9)


@dataclass(frozen=True)
class Toolchain:
    """`problem`: why kernels cannot be compiled with it; '' where they can. Paths and versions are '' if unknown."""

    home: str
    nvcc: str
    nvcc_version: str
    host_compiler: str
    host_compiler_version: str
    problem: str


def find() -> Toolchain:
    """Look for nvcc and the C++ compiler that it needs, and ask both for their versions."""
    home = _home()
    chosen = next(filter(None, (envs.read(v) for v in _NVCC)), "") or (str(Path(home) / "bin" / "nvcc") if home else "")
    nvcc = shutil.which(chosen) if chosen else None
    compiler = shutil.which(envs.read(envs.NVCC_CCBIN) or "g++") or ""
    nvcc_version = _ask(nvcc, r"release (\d+\.\d+)") if nvcc else ""
    compiler_version = _ask(compiler, r"(\d+\.\d+\.\d+)") if compiler else ""
    problem = _problem(home, chosen, nvcc, nvcc_version, compiler)
    return Toolchain(home, nvcc or "", nvcc_version, compiler, compiler_version, problem)


_NVCC = (envs.DG_JIT_NVCC_COMPILER, envs.EP_JIT_NVCC_COMPILER, envs.DJ_JIT_NVCC_COMPILER)


def _home() -> str:
    named = envs.read(envs.CUDA_HOME) or envs.read(envs.CUDA_PATH)
    if named:
        return named
    found = shutil.which("nvcc")
    if found:
        return str(Path(found).parent.parent)
    return str(USUAL_CUDA) if USUAL_CUDA.exists() else ""


def _problem(home: str, chosen: str, nvcc: str | None, version: str, compiler: str) -> str:
    if not home:
        return "no CUDA tool chain: CUDA_HOME is unset, and there is no nvcc on the search path or in /usr/local/cuda"
    if not Path(home).is_dir():
        return f"the CUDA tool chain {home} is no folder (CUDA_HOME or CUDA_PATH names it)"
    if nvcc is None:
        return f"{chosen} is missing or cannot be run"
    if not version:
        return f"{nvcc} does not tell its version"
    if tuple(int(part) for part in version.split(".")) < OLDEST_NVCC:
        return f"{nvcc} is CUDA {version}; DeepGEMM and DeepEP need {OLDEST_NVCC[0]}.{OLDEST_NVCC[1]} or newer"
    if not compiler:
        return f"{nvcc} needs a C++ compiler, and g++ is not on the search path (NVCC_CCBIN can name another)"
    return ""


def _ask(program: str, pattern: str) -> str:
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(pattern, answer)
    return found[1] if found else ""
