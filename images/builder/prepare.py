"""Lays out the builder's CUDA_HOME and NCCL from what the base and the locked wheels have. Runs inside the builder.

DeepEP looks for cccl in /usr/local/cuda and nowhere else, and the wheels that torch brings have no unversioned
libcudart.so and no libcuda.so to link against: so a base without a tool kit gets /usr/local/cuda made of links.
The newer NCCL takes the very place of the one that torch loads, because that place ends in DeepEP's RPATH.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BUILDER = Path("/opt/builder")
HOME = Path("/usr/local/cuda")
OVERLAY = Path("/mnt/nccl")
NOT_CUDA = ("nccl", "nvshmem")
STUB_ERROR = 34  # CUDA_ERROR_STUB_LIBRARY


def stop(what: str) -> None:
    """End the build of the builder with a sentence for the log."""
    print(f"error: {what}", file=sys.stderr)
    raise SystemExit(1)


def cuda_major(include: Path) -> str:
    """The major version that a folder of CUDA headers is for; empty if it holds none."""
    header = include / "cuda_runtime_api.h"
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)\d{3}", header.read_text()) if header.is_file() else None
    return found[1] if found else ""


def link_tree(source: Path, target: Path) -> None:
    """Link every file below `source` to the same place below `target`; what is there already stays."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)


def lay_out_cuda(settings: dict[str, str]) -> None:
    """Make /usr/local/cuda a CUDA_HOME of torch's major version."""
    major = settings["cuda"].split(".")[0]
    own = Path(settings["cuda_home"]) if settings["cuda_home"] else HOME
    if cuda_major(own / "include") == major:
        if own.resolve() != HOME.resolve():
            set_aside(HOME)
            HOME.symlink_to(own)
    else:
        set_aside(HOME)
        wheels = [path for path in sorted(Path(settings["site"], "nvidia").glob("*/include")) if wanted(path)]
        for include in [*wheels, *sorted((BUILDER / "cuda/nvidia").glob("*/include"))]:
            link_tree(include, HOME / "include")
        if cuda_major(HOME / "include") != major or not (HOME / "include/crt/host_defines.h").exists():
            stop(f"neither the base nor the locked wheels hold CUDA {major} headers")
    link_library(HOME / "lib64/libcudart.so", Path(settings["cudart"]))
    stub = HOME / "lib64/stubs/libcuda.so"
    if not stub.exists():
        make_stub(HOME / "include/cuda.h", stub)


def wanted(include: Path) -> bool:
    return include.parent.name not in NOT_CUDA


def set_aside(path: Path) -> None:
    """Move what lies at a path out of the way; this is a throw-away layer over the base."""
    if path.is_symlink() or path.exists():
        path.rename(path.with_name(f"{path.name}.base"))


def link_library(name: Path, library: Path) -> None:
    """An unversioned name for a library, as the linker wants it."""
    name.parent.mkdir(parents=True, exist_ok=True)
    if not name.exists():
        if not library.is_file():
            stop(f"no CUDA runtime library at {library}")
        name.symlink_to(library)


def make_stub(header: Path, stub: Path) -> None:
    """A libcuda.so with every driver function of the header: with fewer, the linker would drop it from NEEDED."""
    text = header.read_text()
    names = set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    names |= set(re.findall(r"#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*_v\d+)\b", text))
    if not names:
        stop(f"{header} declares no driver function")
    stub.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        code = Path(scratch, "stub.c")
        code.write_text("".join(f"int {name}(void) {{ return {STUB_ERROR}; }}\n" for name in sorted(names)))
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, code], check=True)


def replace_nccl(loaded: Path, purelib: Path) -> None:
    """Put the overlay's NCCL, headers, library and metadata, where torch's own lies, as the image will have it.

    A library of the system (`loaded` is not a wheel's) is replaced as a file, to which the wheel's place then links.
    """
    root = loaded.parent.parent
    of_wheel = root.parts[-2:] == ("nvidia", "nccl")
    if not of_wheel:
        root = purelib / "nvidia/nccl"
    site = root.parent.parent
    for old in [root, *site.glob("nvidia_nccl_cu*.dist-info")]:
        shutil.rmtree(old, ignore_errors=not old.exists())
    shutil.copytree(OVERLAY / "nvidia/nccl", root)
    for info in OVERLAY.glob("*.dist-info"):
        shutil.copytree(info, site / info.name)
    if not of_wheel:
        library = root / "lib/libnccl.so.2"
        loaded.unlink()
        shutil.move(library, loaded)
        library.symlink_to(loaded)


def main() -> None:
    """Do what settings.json asks for."""
    settings = json.loads((BUILDER / "settings.json").read_text())
    if settings["cuda"]:
        lay_out_cuda(settings)
    if settings["nccl_loaded"]:
        replace_nccl(Path(settings["nccl_loaded"]), Path(settings["purelib"]))


if __name__ == "__main__":
    main()
