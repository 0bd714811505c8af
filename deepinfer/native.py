"""The compiled part, deepinfer._C, or its twin in Python.

`native.engine` and `native.graph_timer` are the compiled modules where `_C` was built for this torch, and
`deepinfer._python`'s otherwise, after one notice with the reason (DEEPINFER_REQUIRE_C=1: an error).
`_C` is judged by what its file says of itself before the dynamic loader sees it, whose own message would name a
missing symbol and neither version.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import json
import mmap
import sys
import warnings
from collections.abc import Sequence
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from deepinfer import envs
from deepinfer.errors import NativeError

if TYPE_CHECKING:
    from deepinfer._python import engine as engine
    from deepinfer._python import graph_timer as graph_timer

NAME = "deepinfer._C"
PACKAGE = Path(__file__).resolve().parent
_MARK = b"DEEPINFER-C-ABI {"
_FIELDS = {"python", "torch", "torch_git", "cuda"}


def locate(folder: Path = PACKAGE) -> Path | None:
    """The extension's file for this Python, or None."""
    names = [f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_abi(path: Path) -> dict[str, str]:
    """What a compiled extension was built for: python, torch, torch_git, cuda, compiler. {} if it does not say all."""
    if path.stat().st_size == 0:
        return {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(_MARK)
        end = data.find(b"\0", start)
        if start < 0 or end < 0:
            return {}
        text = data[start + len(_MARK) - 1 : end]
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict) or not found.keys() >= _FIELDS:
        return {}
    return {str(key): str(value) for key, value in found.items()}


def rebuild_command() -> str:
    """What to type to get an extension for this torch."""
    root = PACKAGE.parent
    if (root / "setup.py").is_file() and (root / "deepinfer" / "csrc").is_dir():
        return f"cd {root} && {sys.executable} setup.py build_ext --inplace"
    return f"in a checkout of the project: DEEPINFER_PYTHON={sys.executable} ./run build --image host"


def why_not(path: Path) -> str:
    """Why the extension in `path` does not fit this process's torch; '' if it fits. Imports torch."""
    abi = read_abi(path)
    if not abi:
        return f"{path.name} does not say what it was built for: it is damaged or not deepinfer's"
    try:
        torch = importlib.import_module("torch")
    except ImportError as problem:
        return f"{path.name} was built for torch {abi['torch']}, and torch cannot be imported here: {problem}"
    built = (abi["torch"], abi["torch_git"])
    running = (str(torch.__version__), str(torch.version.git_version))
    if built != running:
        return (
            f"{path.name} was built for torch {built[0]} (git {built[1][:12]}), "
            f"and this is torch {running[0]} (git {running[1][:12]})"
        )
    return ""


def why_absent() -> str:
    """Why there is no extension for this Python."""
    others = sorted(path.name for path in PACKAGE.glob("_C.*.so"))
    if others:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"{', '.join(others)} is for another Python than this one ({here})"
    return "deepinfer._C was not built into this installation"


def what_it_lacks(module: ModuleType) -> list[str]:
    """Names that the twin has and this compiled module has not, as after an update of the sources alone."""
    twin = importlib.import_module("deepinfer._python.engine")
    return [f"engine.{name}" for name in twin.__all__ if not hasattr(module.engine, name)]


class _CheckedLoader(importlib.machinery.ExtensionFileLoader):
    """Refuses an extension that was built for another torch; torch's libraries are loaded by then."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        reason = why_not(Path(self.path))
        if reason:
            raise NativeError(reason, next_step=rebuild_command())
        return super().create_module(spec)


class _Finder:
    """Finds deepinfer._C for `import deepinfer._C`, so that it too gets the checked loader."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != NAME:
            return None
        file = locate()
        return spec_from_file_location(NAME, file, loader=_CheckedLoader(NAME, str(file))) if file else None


def guard_imports() -> None:
    """Make `import deepinfer._C` check the file first."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


@functools.cache
def load() -> tuple[ModuleType, str]:
    """The module that holds `engine` and `graph_timer`, and '' or why it is the twin.

    Raises NativeError instead of taking the twin where DEEPINFER_REQUIRE_C=1.
    """
    try:
        if locate() is None:
            raise NativeError(why_absent(), next_step=rebuild_command())
        module = importlib.import_module(NAME)
        missing = what_it_lacks(module)
        if missing:
            raise NativeError(f"deepinfer._C is older than its sources: it lacks {', '.join(missing)}")
        return module, ""
    except ImportError as problem:
        error = problem
    reason = error.what if isinstance(error, NativeError) else f"deepinfer._C does not load: {error}"
    if envs.REQUIRE_C.get():
        cause = "DEEPINFER_REQUIRE_C=1 forbids the twin"
        raise NativeError(reason, cause=cause, next_step=rebuild_command()) from error
    return importlib.import_module("deepinfer._python"), reason


@functools.cache
def _chosen() -> ModuleType:
    module, reason = load()
    if reason:
        warnings.warn(_notice(reason), RuntimeWarning, stacklevel=3)
    return module


def notice() -> str:
    """Why the twin is used and how to rebuild, '' where it is not: for a command, which tells it its own way.

    No warning follows. Raises NativeError as `load` does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        _chosen()
    _, reason = load()
    return _notice(reason) if reason else ""


def _notice(reason: str) -> str:
    return f"{reason}; its slower twin in Python is used. To rebuild: {rebuild_command()}"


def __getattr__(name: str) -> Any:
    if name not in ("engine", "graph_timer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _chosen()
    return importlib.import_module(f"{module.__name__}.{name}")
