"""A call of a kernel, kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
