"""How each kind of column comes to its kernels, and what is counted while Triton compiles."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.ops.plan import Column
from deepinfer.ops import dispatch
from deepinfer.ops.case import Call
from deepinfer.ops.formats import KVCacheFormat

Kernel = Callable[..., Any]
Obtain = Callable[[str, Call], Kernel]
"""(factory's name, call) -> the kernel for the call's parameters."""


def obtain(column: Column) -> Obtain:
    """The column's kernels. Raises ImportError where upstream's module cannot be imported."""
    if column.kind == "upstream":
        return _upstream(column.path, column.module)
    backend = "reference" if column.kind == "compiled" else column.kind

    def kernel(factory: str, call: Call) -> Kernel:
        with dispatch.using(dispatch.Settings(backend, strict=True)):
            found = dispatch.factory(factory)(*call.parameters, **call.named)
        if column.kind != "compiled":
            return found
        torch._dynamo.reset()
        return torch.compile(found)

    return kernel


def _upstream(path: str, module: str) -> Obtain:
    """Factories of a package that is also called deepinfer: in this process ours goes on without its name."""
    for name in [one for one in sys.modules if one.partition(".")[0] == "deepinfer"]:
        del sys.modules[name]
    folders = path.split(os.pathsep)
    sys.path[:0] = folders
    importlib.invalidate_caches()
    found = importlib.import_module(module)
    source = Path(str(found.__file__)).resolve()
    if not any(Path(folder).resolve() in source.parents for folder in folders):
        raise ImportError(f"{module} comes from {source}, not from {path}")

    def kernel(factory: str, call: Call) -> Kernel:
        parameters = [_NAMED_OTHERWISE.get((factory, one), _translated(one, module)) for one in call.parameters]
        named = {name: _translated(one, module) for name, one in call.named.items()}
        return _attribute(module, factory)(*parameters, **named)  # type: ignore[no-any-return]

    return kernel


def _attribute(module: str, name: str) -> Any:
    """What a module, or one of the modules of a package, calls so. Raises AttributeError."""
    found = importlib.import_module(module)
    if hasattr(found, name):
        return getattr(found, name)
    problems = []
    for one in pkgutil.iter_modules(getattr(found, "__path__", ())):
        try:
            inner = importlib.import_module(f"{module}.{one.name}")
        except Exception as problem:  # told where the name is in none of those that can be imported
            problems.append(f"{one.name}: {type(problem).__name__}: {problem}")
            continue
        if hasattr(inner, name):
            return getattr(inner, name)
    raise AttributeError("; ".join([f"{module} has no {name}", *problems[:3]]))


def _translated(value: Any, module: str) -> Any:
    """Our cache formats as upstream's, whose class has the same fields."""
    if not isinstance(value, KVCacheFormat):
        return value
    return _attribute(module, "KVCacheFormat")(**dataclasses.asdict(value))


_NAMED_OTHERWISE = {("norm_tl", "e4m3"): "float8_e4m3fn"}
"""(factory, compile-time parameter) -> how upstream's kernels spell it."""


@dataclass
class Compiled:
    """What Triton compiled meanwhile. seconds: in its compiler. variants: KERNEL:HASH, cached ones too."""

    seconds: float = 0.0
    variants: set[str] = dataclasses.field(default_factory=set)


@contextlib.contextmanager
def watching() -> Iterator[Compiled]:
    """Count what Triton compiles within the block; nothing where there is no Triton."""
    compiled = Compiled()
    try:
        from triton import knobs
    except ImportError:
        yield compiled
        return
    before: Any = knobs.compilation.listener

    def listen(*, cache_hit: bool, **told: Any) -> None:
        known = told["metadata"]
        compiled.variants.add(f"{known.get('name', '')}:{known.get('hash', '')}")
        if not cache_hit:
            compiled.seconds += told["times"].total / 1e6
        if before is not None:
            before(cache_hit=cache_hit, **told)

    knobs.compilation.listener = listen
    try:
        yield compiled
    finally:
        knobs.compilation.listener = before
