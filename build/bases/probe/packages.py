"""The interpreter, its distributions, what torch says of itself, and the Tritons."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

from build.bases.probe.children import in_child
from build.bases.probe.libraries import normalised


def mapped(name: str) -> list[str]:
    """Files called name* that this process maps, in order of address."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = "/" + line.partition("/")[2]
        if Path(path).name.startswith(name) and path not in found:
            found.append(path)
    return found


def torch_facts() -> dict[str, Any]:
    """In a child: torch as it imports, and which NCCL and C++ library that process maps."""
    import torch

    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "torch_git": getattr(torch.version, "git_version", None),
        "torch_path": str(Path(str(torch.__file__)).absolute().parent),
        "cuda": torch.version.cuda,
    }
    for path in mapped("libstdc++.so.6")[:1]:
        plain = Path(path).with_name("libstdc++.so.6")
        facts["libstdcxx"] = str(plain) if plain.exists() else path
    for path in mapped("libnccl.so")[:1]:
        # Asked of the library: torch.cuda.nccl.version() is the one that torch was compiled with.
        code = ctypes.c_int()
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
        facts["nccl_loaded"] = path
        facts["nccl_version"] = f"{code.value // 10000}.{code.value % 10000 // 100}.{code.value % 100}"
    return facts


def module_facts(name: str) -> dict[str, Any]:
    """In a child: the version that a module states of itself."""
    return {"version": getattr(__import__(name), "__version__", None)}


def installed() -> dict[str, str]:
    """Normalised name -> version of all distributions; the first on the path counts, as it does for imports."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name and one.version:
            found.setdefault(normalised(name), one.version)
    return found


def present(module: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def python_facts(problems: list[str]) -> dict[str, Any]:
    """The interpreter, what torch says of itself, and the Tritons."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "python_tag": f"cp{sys.version_info[0]}{sys.version_info[1]}",
        "ext_suffix": sysconfig.get_config_var("EXT_SUFFIX") or "",
        "executable": str(Path(sys.executable).absolute()),
        "site": sysconfig.get_path("purelib"),
        "distributions": installed(),
    }
    if platform.python_implementation() != "CPython":
        problems.append(f"the Python is {platform.python_implementation()}, not CPython")
    if present("torch"):
        facts.update(in_child("torch", problems))
    else:
        problems.append(f"there is no torch for {facts['executable']}")
    if "torch_path" in facts:
        facts["torch_lib"] = str(Path(facts["torch_path"]) / "lib")
    for module in ("triton", "tokenspeed_triton"):
        version = facts["distributions"].get(normalised(module))
        # The package `triton` may be another distribution's (FlagTree's): what it says of itself counts.
        if present(module) and (module == "triton" or version is None):
            version = in_child(module, problems).get("version") or version
        facts[module] = version
    return facts
