"""An entry: one call of a kernel at a number of rows, and the bytes that it cannot do without moving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.ops.model import EVERY_ROWS
from deepinfer.ops.case import Argument, Call
from deepinfer.ops.names import FAMILY_OF


@dataclass(frozen=True)
class Work:
    """A call and `moved`: bytes that have to be read from memory or written to it, each once."""

    call: Call
    moved: int


class Inputs:
    """Makes the tensors of a call on a device, the same ones for the same seed. junk: what `empty` holds."""

    def __init__(self, device: torch.device | str, junk: int = 0, seed: int = 0x5EED) -> None:
        self.device = torch.device(device)
        self.junk = junk
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Normally distributed."""
        made = torch.empty(shape, dtype=torch.float32 if dtype.itemsize < 2 else dtype, device=self.device)
        return made.normal_(generator=self.generator).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Uniform in [low, high)."""
        return torch.randint(low, high, shape, dtype=dtype, device=self.device, generator=self.generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        """float32 in [0, 1)."""
        return torch.rand(shape, device=self.device, generator=self.generator)

    def distinct(self, count: int, below: int) -> torch.Tensor:
        """[count] int32: numbers below a limit in random order, none twice."""
        return torch.randperm(below, device=self.device, generator=self.generator)[:count].int()

    def range(self, count: int, step: int = 1) -> torch.Tensor:
        """[count] int32: 0, step, 2 * step, ..."""
        return torch.arange(count, dtype=torch.int32, device=self.device) * step

    def full(self, value: Any, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """One value everywhere."""
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """For outputs."""
        return torch.full(shape, self.junk, dtype=torch.float32, device=self.device).to(dtype)


Make = Callable[[int, Inputs], Work]


@dataclass(frozen=True)
class Entry:
    """What is measured. name: tells a factory's entries apart. rows: the numbers of rows that `make` is asked for.

    copy_bound: it should be as fast as memory; the bar is a fraction of the device's copy.
    metadata: a small launch of a decode step; the bar is a time.
    """

    factory: str
    name: str
    make: Make
    rows: Sequence[int] = EVERY_ROWS
    copy_bound: bool = False
    metadata: bool = False

    @property
    def family(self) -> str:
        """The module that the factory is in."""
        return FAMILY_OF[self.factory]

    @property
    def key(self) -> str:
        """FACTORY/NAME."""
        return f"{self.factory}/{self.name}"


def reads(**values: Any) -> list[Argument]:
    """Arguments that are read only, in the order in which they are written here."""
    return [Argument(name, value) for name, value in values.items()]


def writes(**values: Any) -> list[Argument]:
    """Arguments that are written."""
    return [Argument(name, value, output=True) for name, value in values.items()]


def size(*tensors: torch.Tensor | None) -> int:
    """Bytes of all elements."""
    return sum(one.numel() * one.element_size() for one in tensors if one is not None)


def work(
    arguments: Sequence[Argument],
    parameters: Sequence[Any] = (),
    named: Mapping[str, Any] | None = None,
    *,
    moved: int | None = None,
) -> Work:
    """A call; without `moved`, every element of every argument counts once."""
    if moved is None:
        moved = size(*(one.value for one in arguments if isinstance(one.value, torch.Tensor)))
    return Work(Call(arguments, tuple(parameters), named or {}), moved)


def footprint(call: Call) -> int:
    """Bytes of the memory behind a call's tensors."""
    storages = {
        one.value.untyped_storage().data_ptr(): one.value.untyped_storage().nbytes()
        for one in call.arguments
        if isinstance(one.value, torch.Tensor)
    }
    return sum(storages.values())
