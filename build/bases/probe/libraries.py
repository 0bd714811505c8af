"""NCCL's and CUDA's libraries and headers, the tool kit, the compiler: where they lie and which versions they are."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from pathlib import Path
from typing import Any

from build.bases.probe.children import program

NCCL_NUMBERS = re.compile(r"#define\s+NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)")


def normalised(name: str) -> str:
    """A distribution's name as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def homes() -> list[Path]:
    """The home folders of all users that exist here."""
    found = {Path("/root"), Path("~").expanduser()}
    try:
        users = Path("/etc/passwd").read_text(errors="replace").splitlines()
    except OSError:
        users = []
    found |= {Path(line.split(":")[5]) for line in users if line.count(":") >= 6}
    # os.path answers False where this user may not look, and Path.is_dir raises there.
    return sorted(home for home in found if home != Path("/") and home.is_absolute() and os.path.isdir(home))  # noqa: PTH112


def globbed(folder: Path, pattern: str) -> list[Path]:
    """What matches below a folder, sorted; nothing where this user may not look."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def loader_cache() -> list[tuple[str, str]]:
    """(soname, path) as the dynamic linker's cache has them for x86-64."""
    _, text = program(shutil.which("ldconfig") or "/sbin/ldconfig", "-p")
    return re.findall(r"^\s*(\S+) \(libc6,x86-64[^)]*\) => (\S+)$", text, re.MULTILINE)


def library_folders(sites: list[Path]) -> list[Path]:
    """Where CUDA's and NCCL's libraries lie: search path, packages, tool kits, the system, Triton's own downloads."""
    folders = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    for site in sites:
        folders += [*sorted(site.glob("nvidia/*/lib")), site / "torch/lib"]
    toolkits = sorted(Path("/usr/local").glob("cuda*"))
    folders += [folder / part for folder in toolkits for part in ("lib64", "targets/x86_64-linux/lib")]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/local/lib")]
    for home in homes():
        folders += globbed(home / ".triton", "**/lib")
    return folders


def search(name: str, cached: list[tuple[str, str]], sites: list[Path]) -> list[str]:
    """Every real file called name*, each once."""
    candidates = [Path(path) for soname, path in cached if soname.startswith(name)]
    for folder in library_folders(sites):
        candidates += globbed(folder, name + "*")
    return sorted({str(path.resolve()) for path in candidates if os.path.isfile(path)})  # noqa: PTH113


def library(path: str, brought: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """A file as the inspection lists it; its version is in its name, or is that of what installed it."""
    name = Path(path).name
    match = re.match(r"(lib.+?\.so)\.(\d+)((?:\.\d+)*)$", name)
    version = brought[path][1] if path in brought else None
    if match is not None and match.group(3):
        version = match.group(2) + match.group(3)
    soname = f"{match.group(1)}.{match.group(2)}" if match is not None else name
    return {"path": path, "soname": soname, "version": version, "size": Path(path).stat().st_size}


def owners() -> dict[str, tuple[str, str]]:
    """Real path of each NCCL and CUDA run-time library -> name and version of the distribution that installed it."""
    found = {}
    for one in importlib.metadata.distributions():
        name = normalised(one.metadata["Name"] or "")
        if name.startswith("nvidia-"):
            for file in one.files or ():
                if re.match(r"lib(nccl|cudart)\.so\.", file.name):
                    found[str(Path(str(one.locate_file(file))).resolve())] = (name, one.version)
    return found


def nccl_header(loaded: str) -> str | None:
    """Version in the header beside a library, else in the system's."""
    beside = Path(loaded).parent.parent / "include/nccl.h"
    for path in (beside, Path("/usr/include/nccl.h"), Path("/usr/local/cuda/include/nccl.h")):
        if path.is_file():
            numbers = dict(NCCL_NUMBERS.findall(path.read_text(errors="replace")))
            if len(numbers) == 3:
                return "{MAJOR}.{MINOR}.{PATCH}".format(**numbers)
    return None


def toolkit() -> tuple[str | None, str | None]:
    """Folder of a CUDA tool kit and its nvcc's version; no version where only the headers are there."""
    places = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places += [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    on_path = shutil.which("nvcc")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent.parent)
    headers = None
    for place in places:
        match = re.search(r"\bV(\d+\.\d+\.\d+)", program(str(place / "bin/nvcc"), "--version")[1])
        if match is not None:
            return str(place), match.group(1)
        if headers is None and (place / "include/cuda_runtime.h").is_file():
            headers = str(place)
    return headers, None


def compiler(problems: list[str]) -> str | None:
    """Version of the C++ compiler called g++, None without one."""
    for flag in ("-dumpfullversion", "-dumpversion"):
        status, text = program("g++", flag)
        if status == 0 and re.match(r"\d+(\.\d+)*$", text.strip()):
            return text.strip()
    if shutil.which("gcc"):
        problems.append("gcc is there without g++: nothing in C++ can be compiled")
    return None


def libc(problems: list[str]) -> str | None:
    """Version of glibc, None where the C library is another one."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        text = ""
    if not text.startswith("glibc "):
        problems.append("the C library is not glibc")
        return None
    return text.split()[1]
