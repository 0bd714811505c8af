"""A case: one call of a factory with its inputs, and how two backends' results of it are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from deepinfer.ops.names import FAMILY_OF
from deepinfer.ops.tolerance import EXACT, Tolerance

Results = Mapping[str, torch.Tensor]
"""Argument name -> what it holds after the call; inputs are in it too."""
Judge = Callable[[Results, Results], str]
"""(expected, got) -> '' or what is wrong. For what a tolerance cannot say: unspecified parts, sets, near-ties."""


@dataclass(frozen=True)
class Argument:
    """One run-time argument, in the factory's order. value: tensor, number or None.

    output: it is written (or updated in place), and compared. Whatever shares its storage and is no part of any
    output of the call is compared too: it has to stay as it was.
    tolerance: how it is compared; None leaves it to the case's judge, or out (scratch).
    repeatable: two runs of the same kernel give the same bits; not so for a sum by atomic additions.
    """

    name: str
    value: Any
    output: bool = False
    tolerance: Tolerance | None = EXACT
    repeatable: bool = True


@dataclass(frozen=True)
class Call:
    """What a factory is called with, and then its kernel.

    judge: compares more than the tolerances do; see `Judge`.
    """

    arguments: Sequence[Argument]
    parameters: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    judge: Judge | None = None


@dataclass(frozen=True)
class Case:
    """A named call. make: builds it on the CPU from a generator with a fixed seed.

    large: too large for the interpreter and for a dump; it runs on a GPU and in the reference only.
    engine: compile-time parameters that the real model uses: what `warm` compiles.
    """

    factory: str
    name: str
    make: Callable[[torch.Generator], Call]
    large: bool = False
    engine: bool = False

    @property
    def family(self) -> str:
        """The module that the factory is in."""
        return FAMILY_OF[self.factory]

    def call(self) -> Call:
        """Build the inputs: the same ones each time."""
        return self.make(torch.Generator().manual_seed(0x5EED))
