"""Are our shared objects linked right? Every NEEDED and undefined symbol, looked up in a process that imported torch.

A symbol counts as found if the dynamic loader would find it: in what the module itself NEEDs (and what that needs), or
in the process's global scope (Python). That torch has it somewhere is not enough.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from build.gates.programs.elf import Elf, NotElf, is_elf, read_elf

DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries that come with the GPU driver, never with an image."""

_ONLY_IN_LIBSTDCXX = frozenset(
    {
        "__cxa_throw",
        "__cxa_allocate_exception",
        "_ZSt9terminatev",
        "_ZNSt6locale7classicEv",
        "_ZNSt8ios_base4InitC1Ev",
        "_ZSt20__throw_length_errorPKc",
        "_ZSt19__throw_regex_errorNSt15regex_constants10error_typeE",
        "_ZNSt11regex_errorC1ENSt15regex_constants10error_typeE",
    }
)
# What C++ code takes from libstdc++; __cxa_finalize and __cxa_atexit are the C library's.
_FROM_LIBSTDCXX = ("_ZSt", "_ZNSt", "_ZNKSt", "_Znw", "_ZdlPv", "__cxa_throw", "__cxa_begin_catch", "__gxx_personality")


def _library() -> ctypes.CDLL:
    process = ctypes.CDLL(None)
    process.dlsym.restype = process.dlvsym.restype = process.dlopen.restype = ctypes.c_void_p
    process.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    process.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    process.dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    process.dlerror.restype = ctypes.c_char_p
    return process


_DL = _library()
_NOLOAD = getattr(os, "RTLD_NOLOAD", 4)


def _open(name: str, flags: int) -> int | None:
    handle: int | None = _DL.dlopen(name.encode(), flags)
    return handle


def resolve(library: Path, elf: Elf, soname: str) -> tuple[int | None, dict[str, str]]:
    """The handle of one NEEDED library, and how it was found: loaded, beside, system, driver or missing."""
    handle = _open(soname, os.RTLD_LAZY | _NOLOAD)
    if handle:
        return handle, {"soname": soname, "how": "loaded"}
    for folder in elf.search:
        place = folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(library.parent))
        if Path(place, soname).exists():
            handle = _open(str(Path(place, soname)), os.RTLD_LAZY)
            if handle:
                return handle, {"soname": soname, "how": "beside"}
    handle = _open(soname, os.RTLD_LAZY)
    if handle:
        return handle, {"soname": soname, "how": "system"}
    error = (_DL.dlerror() or b"").decode(errors="replace")
    return None, {"soname": soname, "how": "driver" if soname in DRIVER else "missing", "error": error}


def _exists(handles: list[int | None], name: str, version: str) -> bool:
    for handle in handles:
        if version:
            if _DL.dlvsym(handle, name.encode(), version.encode()):
                return True
        elif _DL.dlsym(handle, name.encode()):
            return True
    return False


def demangle(name: str) -> str:
    """A C++ name as people write it, by the process's own libstdc++; the name itself if it is no C++ name."""
    try:
        cxx = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    cxx.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int(1)
    text = cxx.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text or status.value != 0:
        return name
    plain = ctypes.string_at(text).decode(errors="replace")
    _DL.free(ctypes.c_void_p(text))
    return plain


def shared_objects(roots: list[str]) -> Iterator[Path]:
    """Every `*.so` and `*.so.*` file below the roots (a root may be a file itself), links left out."""
    for root in roots:
        if Path(root).is_file():
            yield Path(root)
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                path = Path(folder, name)
                if (name.endswith(".so") or ".so." in name) and not path.is_symlink():
                    yield path


def examine(path: Path, module: str) -> dict[str, Any]:
    """The facts of one shared object. module: the import name that it belongs to, "" for a library."""
    try:
        if not is_elf(path):
            return {"path": str(path), "module": module, "skipped": "not an ELF file (a linker script)"}
        elf = read_elf(path, symbols=bool(module))
    except (NotElf, OSError) as problem:
        return {"path": str(path), "module": module, "error": str(problem)}
    found = [resolve(path, elf, soname) for soname in elf.needed]
    facts: dict[str, Any] = {"path": str(path), "module": module, "needed": [how for _, how in found]}
    if module:
        handles = [handle for handle, _ in found if handle] + [None]
        undefined = [symbol for symbol in elf.symbols if not symbol.defined and not symbol.weak]
        lost = [symbol for symbol in undefined if not _exists(handles, symbol.name, symbol.version)]
        facts["undefined"] = len(undefined)
        facts["lost"] = [{"name": s.name, "plain": demangle(s.name), "version": s.version} for s in lost]
        facts["cxx"] = any(symbol.name.startswith(_FROM_LIBSTDCXX) for symbol in elf.symbols)
        facts["static_cxx"] = sorted({s.name for s in elf.symbols if s.defined} & _ONLY_IN_LIBSTDCXX)
    return facts


def main(roots: list[str], modules: Mapping[str, str]) -> dict[str, Any]:
    """Examine every shared object below `roots`. modules: import name -> its package's folder."""
    try:
        import torch  # noqa: F401
    except Exception as problem:
        return {"torch_error": f"{type(problem).__name__}: {problem}", "libraries": []}
    libraries = []
    for path in shared_objects(roots):
        owners = [name for name, folder in modules.items() if path.is_relative_to(folder)]
        libraries.append(examine(path, owners[0] if owners else ""))
    return {"torch": sys.modules["torch"].__version__, "libraries": libraries}
