"""A forward taken apart: which kernels were called with what."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from benchmarks.step.call import Call, See
from benchmarks.step.library import SEEING
from deepinfer.ops import dispatch
from deepinfer.ops.names import ALL_FAMILIES


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
    token = SEEING.set(see)
    try:
        yield
    finally:
        SEEING.reset(token)
        for module in replaced:
            module.factory = dispatch.factory  # type: ignore[attr-defined]
