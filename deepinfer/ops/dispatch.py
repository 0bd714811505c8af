"""Which backend a kernel comes from, and the record of what ran.

`triton` is the default where the driver sees a GPU, `reference` (PyTorch) elsewhere. DEEPINFER_OPS_BACKEND picks one,
DEEPINFER_OPS_FALLBACK sends named kernels to `reference`, DEEPINFER_OPS_STRICT makes any fallback an error,
DEEPINFER_TRACE_KERNELS names a file that records what ran. The choice is made when a factory is asked for, thus
before a CUDA graph is captured.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from deepinfer import envs, platform
from deepinfer.errors import KernelUnavailableError, VariableError
from deepinfer.ops.names import FAMILY_OF

BACKENDS = ("triton", "reference")
Kernel = Callable[..., Any]
Factory = Callable[..., Kernel]
_log = logging.getLogger("deepinfer.ops")


@dataclass(frozen=True)
class Settings:
    """Where kernels come from. fallbacks: factories that come from `reference` although `backend` is `triton`."""

    backend: str
    fallbacks: frozenset[str] = frozenset()
    strict: bool = False
    trace: str = ""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise VariableError(
                f"DEEPINFER_OPS_BACKEND={self.backend!r} is no backend{_near(self.backend, BACKENDS)}",
                cause=f"there are {' and '.join(BACKENDS)}",
                next_step="set it to one of them, or unset it",
            )
        for name in sorted(self.fallbacks - set(FAMILY_OF)):
            raise VariableError(
                f"DEEPINFER_OPS_FALLBACK names {name!r}, which is no kernel{_near(name, FAMILY_OF)}",
                next_step="write the factories' names, separated by commas, as in gather_tl,norm_tl",
            )


_override: ContextVar[Settings | None] = ContextVar("deepinfer_ops_settings", default=None)


def settings() -> Settings:
    """What is in effect: that of the innermost `using`, else the environment's, read once."""
    return _override.get() or _of_environment()[0]


def reason() -> str:
    """Why the environment's backend is the one that it is, in words."""
    return _of_environment()[1]


@functools.cache
def _of_environment() -> tuple[Settings, str]:
    if envs.OPS_BACKEND.is_set:
        return of_environment("")
    machine = platform.detect()
    return of_environment("" if machine.kind == "cuda" else machine.reason)


def of_environment(without_gpu: str) -> tuple[Settings, str]:
    """The environment's settings, and why its backend is the one that it is.

    without_gpu: why the driver sees no GPU; '' where it sees one.

    Raises:
        VariableError: a variable has a value that is not allowed.
    """
    asked, why = envs.OPS_BACKEND.get(), "DEEPINFER_OPS_BACKEND says so"
    if not asked:
        asked, why = ("reference", without_gpu) if without_gpu else ("triton", "the driver sees a GPU")
    names = (name.strip() for name in envs.OPS_FALLBACK.get().split(","))
    fallbacks = frozenset(filter(None, names))
    return Settings(asked, fallbacks, envs.OPS_STRICT.get(), envs.TRACE_KERNELS.get()), why


@contextlib.contextmanager
def using(chosen: Settings | str) -> Iterator[Settings]:
    """Within the block, kernels come from where `chosen` (settings, or a backend's name) says."""
    replaced = Settings(chosen) if isinstance(chosen, str) else chosen
    token = _override.set(replaced)
    try:
        yield replaced
    finally:
        _override.reset(token)


def factory(name: str) -> Factory:
    """The factory of a kernel in the backend that is in effect: the backend's own object, unless a trace is kept.

    Raises:
        KernelUnavailableError: no kernel has this name, its backend cannot be imported, or a fallback under strict.
    """
    family = FAMILY_OF.get(name)
    if family is None:
        raise KernelUnavailableError(f"there is no kernel {name!r}{_near(name, FAMILY_OF)}")
    chosen = settings()
    backend = chosen.backend
    if backend == "triton" and name in chosen.fallbacks:
        if chosen.strict:
            raise KernelUnavailableError(
                f"{name} would fall back to the reference backend",
                cause="DEEPINFER_OPS_FALLBACK names it, and DEEPINFER_OPS_STRICT forbids fallbacks",
                next_step="unset one of the two",
            )
        _notice(name)
        backend = "reference"
    found: Factory | None = getattr(_module(backend, family), name, None)
    if found is None:
        raise KernelUnavailableError(f"the {backend} backend has no {name}: deepinfer.ops.{backend}.{family} lacks it")
    return _traced(found, name, backend, chosen.trace) if chosen.trace else found


@functools.cache
def _notice(name: str) -> None:
    _log.warning("%s runs on the reference backend: DEEPINFER_OPS_FALLBACK names it", name)


@functools.cache
def _module(backend: str, family: str) -> Any:
    path = f"deepinfer.ops.{backend}.{family}"
    try:
        return importlib.import_module(path)
    except ImportError as problem:
        raise KernelUnavailableError(
            f"the {backend} backend of {family} cannot be imported: {problem}",
            cause="Triton is missing or broken" if backend == "triton" else "PyTorch is missing or broken",
            next_step="`deepinfer env` shows what was found; DEEPINFER_OPS_BACKEND=reference needs PyTorch only",
        ) from problem


@functools.cache
def _traced(found: Factory, name: str, backend: str, path: str) -> Factory:
    @functools.cache
    def construct(*parameters: Any, **named: Any) -> Kernel:
        kernel = found(*parameters, **named)
        told = False

        @functools.wraps(kernel)
        def run(*arguments: Any, **by_name: Any) -> Any:
            nonlocal told
            if not told:
                told = True
                values = [*map(repr, parameters), *(f"{key}={value!r}" for key, value in named.items())]
                _record(path, {"kernel": name, "backend": backend, "parameters": values})
            return kernel(*arguments, **by_name)

        return run

    return functools.wraps(found)(construct)


def _record(path: str, row: dict[str, Any]) -> None:
    """Append one line; a single write, so that several processes may share the file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as problem:
        raise VariableError(
            f"DEEPINFER_TRACE_KERNELS={path!r} cannot be written: {problem.strerror}",
            next_step="name a file in a folder that is there and writable, or unset it",
        ) from problem
    with contextlib.closing(os.fdopen(descriptor, "ab", buffering=0)) as file:
        file.write(json.dumps(row).encode() + b"\n")


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
