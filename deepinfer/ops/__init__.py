"""Kernels. `ops.NAME_tl` is a factory of the backend in effect (see `dispatch`); the families' modules hold the
interface functions, which check their arguments: `ops.gather.gather(x, index)`.
"""

from __future__ import annotations

from deepinfer.ops.dispatch import Factory, Settings, factory, settings, using

__all__ = ["Settings", "factory", "settings", "using"]


def __getattr__(name: str) -> Factory:
    if name.endswith("_tl"):
        return factory(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
