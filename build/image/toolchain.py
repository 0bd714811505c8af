"""The run-time CUDA compiler: wheels laid out as the CUDA_HOME that DeepGEMM's and DeepEP's JIT look for.

They compile kernels with `CUDA_HOME/bin/nvcc --cubin`: that needs the compiler driver, cicc with libdevice, ptxas,
cudafe++, fatbinary and the headers of the runtime, crt and cccl, and a host compiler of the base.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from packaging.version import InvalidVersion, Version

from build.errors import EnvironmentCannot
from build.image.licences import lay_licences
from build.image.parts import inside
from build.inspection import Inspection
from build.locks import fetched_wheels
from build.plan import TargetPlan

WHEEL_ROOT = re.compile(r"nvidia/cu\d+/(?P<path>.+)")
"""Where CUDA's wheels keep the files of a tool kit."""

# 63 MB that nvcc never loads (cicc has it built in), files of CMake and pip, and the runtime's static library.
LEFT_OUT = re.compile(r"lib/libnvvm\.so|lib/cmake/|\.metadata/|lib/libcudart_static\.a|nvvm/doc/")


@dataclass(frozen=True)
class ToolchainChoice:
    """Whether an image gets a tool chain, and why.

    status: "added" (laid out at `prefix`), "base" (the base's own is new enough), "none" (nothing calls a compiler,
        or none can be had).
    """

    status: Literal["added", "base", "none"]
    reason: str
    prefix: str = ""
    nvcc: str = ""
    host_compiler: str | None = None

    def environment(self, inspection: Inspection) -> dict[str, str]:
        """The image's variables that lead the JITs to an added tool chain.

        `import deepinfer` sets CUDA_HOME for its own process where no other nvcc is found. A base with a CUDA_HOME of
        its own, or an older nvcc, keeps it for the vendor's programs, and the JITs are told theirs by name; so they are
        where torch is for another major version of CUDA, whose CUDA_HOME a user may well give.
        """
        base = inspection.environment
        misled = inspection.nvcc or base.get("CUDA_HOME") or base.get("CUDA_PATH")
        if self.nvcc and inspection.cuda and _major(self.nvcc) != _major(inspection.cuda):
            misled = inspection.cuda
        if self.status != "added" or not misled:
            return {}
        names = ("DG_JIT_NVCC_COMPILER", "EP_JIT_NVCC_COMPILER")
        return {name: f"{self.prefix}/bin/nvcc" for name in names if not base.get(name)}


def choose_toolchain(plan: TargetPlan, inspection: Inspection, lock_version: str | None) -> ToolchainChoice:
    """Decide from the plan and the base's facts; `lock_version` is the nvcc that the target's lock would bring."""
    wanted = [cell.component.title for cell in plan.cells if cell.component.toolchain and cell.status != "unsupported"]
    names = " and ".join(wanted)
    if not wanted:
        return ToolchainChoice("none", "no component of this image compiles at run time")
    toolchain = plan.target.toolchain
    if toolchain is None:
        return ToolchainChoice("none", f"matrix.yaml names no tool chain here, so {names} cannot compile kernels")
    if inspection.nvcc is not None and _at_least(inspection.nvcc, toolchain.minimum):
        return ToolchainChoice(
            "base", f"the base has nvcc {inspection.nvcc}", inspection.cuda_home or "", inspection.nvcc, inspection.gcc
        )
    had = f"the base has nvcc {inspection.nvcc}" if inspection.nvcc else "the base has no nvcc"
    reason = f"{had}; {names} need {toolchain.minimum} or newer"
    if inspection.gcc is None:
        reason += "; the base has no host compiler either, without which nvcc cannot work"
    return ToolchainChoice("added", reason, toolchain.prefix, lock_version or "", inspection.gcc)


def _major(version: str) -> str:
    return version.partition(".")[0]


def _at_least(version: str, minimum: str) -> bool:
    try:
        return Version(version) >= Version(minimum)
    except InvalidVersion:
        return False


def lay_toolchain(tree: Path, wheels: Path, prefix: PurePosixPath, runtime_library: str | None) -> None:
    """Lay the wheels of a fetched lock out below `prefix` of the image.

    Args:
        runtime_library: libcudart.so.N of the base that torch itself loads; the tool chain's is then a link to it, so
            that no second file of that soname exists.

    Raises EnvironmentCannot if what is laid out is no compiler.
    """
    home = inside(tree, prefix)
    for name, wheel in fetched_wheels(wheels).items():
        _unpack(wheel, home)
        lay_licences(tree, name, wheel)
    missing = [name for name in ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc", "include/cuda_runtime.h", "include/cccl")
               if not (home / name).exists()]  # fmt: skip
    if missing:
        raise EnvironmentCannot(
            f"the wheels of the tool chain's lock hold no {', '.join(missing)}",
            cause="a wheel is missing from the lock, or its layout changed",
            next_step="compare images/<name>/toolchain.in with the wheels of that CUDA release",
        )
    libraries = home / "lib"
    (home / "lib64").symlink_to("lib")
    for library in sorted(libraries.glob("libcudart.so.*")):
        if runtime_library is not None and PurePosixPath(runtime_library).name.startswith(library.name):
            library.unlink()
            library.symlink_to(runtime_library)
        (libraries / "libcudart.so").symlink_to(library.name)


def _unpack(wheel: Path, home: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                match = WHEEL_ROOT.fullmatch(member.filename)
                if match is None or member.is_dir() or LEFT_OUT.match(match["path"]):
                    continue
                target = home / match["path"]
                if not target.resolve().is_relative_to(home.resolve()):
                    raise EnvironmentCannot(f"{wheel.name} holds a file outside of its folder: {member.filename}")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as data, target.open("wb") as out:
                    while chunk := data.read(1 << 20):
                        out.write(chunk)
                target.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)
    except zipfile.BadZipFile as problem:
        raise EnvironmentCannot(
            f"{wheel.name} is damaged: {problem}", next_step="remove it from the build cache and run the command again"
        ) from problem
