"""A forward taken apart: which kernels were called with what."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deepinfer.ops import dispatch
from deepinfer.ops.names import ALL_FAMILIES


@dataclass(frozen=True)
class Call:
    """A kernel, made by a factory with parameters, and what it is about to be called with."""

    factory: str
    parameters: tuple[Any, ...]
    kernel: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def __call__(self) -> None:
        self.kernel(*self.arguments, **self.named)


See = Callable[[Call], None]


@contextlib.contextmanager
def watching(see: See) -> Iterator[None]:
    """Within the block, `see` is given every call of a kernel before it runs; its arguments are no copies."""

    def factory(name: str) -> dispatch.Factory:
        construct = dispatch.factory(name)

        def constructed(*parameters: Any, **options: Any) -> dispatch.Kernel:
            kernel = construct(*parameters, **options)

            def run(*arguments: Any, **named: Any) -> Any:
                see(Call(name, (*parameters, *options.values()), kernel, arguments, named))
                return kernel(*arguments, **named)

            return run

        return constructed

    modules = [importlib.import_module(f"deepinfer.ops.{family}") for family in ALL_FAMILIES]
    replaced = [module for module in modules if getattr(module, "factory", None) is dispatch.factory]
    for module in replaced:
        module.factory = factory  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in replaced:
            module.factory = dispatch.factory  # type: ignore[attr-defined]
