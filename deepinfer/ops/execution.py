"""Run a case on a device and compare what two backends made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from deepinfer.errors import KernelUnavailableError
from deepinfer.ops import dispatch
from deepinfer.ops.case import Argument, Call
from deepinfer.ops.names import FAMILY_OF
from deepinfer.ops.operators import Watched
from deepinfer.ops.tolerance import difference

Storages = dict[int, torch.Tensor]
_AT_A_TIME = 2**26
_KEPT = 2**31
"""Bytes of a GPU that a process may keep for its next case."""


@dataclass(frozen=True)
class Outcome:
    """What a call left behind, on the CPU.

    results: every tensor argument by name. rest: storage by storage, the bytes that belong to no output; `before`
    holds them as they were. after: the whole call with what its tensors hold now.
    operators: what it asked of PyTorch beside allocation, views and fills, where that was watched.
    """

    results: Mapping[str, torch.Tensor]
    rest: Sequence[torch.Tensor]
    before: Sequence[torch.Tensor]
    after: Call
    operators: Sequence[str] = ()


def outcome(before: Call, after: Call) -> Outcome:
    """What became of a call: `after` is laid out as `before`, both on the CPU."""
    return _outcome(after, _bytes_of_no_output(before.arguments), _bytes_of_no_output(after.arguments), ())


def _outcome(
    after: Call, before: Sequence[torch.Tensor], rest: Sequence[torch.Tensor], operators: Sequence[str]
) -> Outcome:
    results = {one.name: one.value for one in after.arguments if isinstance(one.value, torch.Tensor)}
    return Outcome(results, rest, before, after, operators)


def relocated(call: Call, device: torch.device | str) -> Call:
    """The call with its tensors copied to a device: strides, offsets and shared storages stay as they are."""
    moved: Storages = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        key = storage.data_ptr()
        if key not in moved or key == 0:
            moved[key] = all_bytes(value).to(device, copy=True)
        return view_of(moved[key], value)

    return replace(call, arguments=[replace(one, value=move(one.value)) for one in call.arguments])


def execute(factory: dispatch.Factory, call: Call, device: torch.device | str, *, watch: bool = False) -> Outcome:
    """Run a factory's kernel on copies of the inputs; the call's own tensors stay as they are.

    watch: gather the operators that it asks of PyTorch.
    """
    here = relocated(call, device)
    values = [one.value for one in here.arguments]
    before = _bytes_of_no_output(here.arguments)
    found: Sequence[str] = ()
    if watch:
        with Watched() as watched:
            factory(*call.parameters, **call.named)(*values)
        found = watched.found
    else:
        factory(*call.parameters, **call.named)(*values)
    return _outcome(relocated(here, "cpu"), before, _bytes_of_no_output(here.arguments), found)


def run(name: str, call: Call, backend: str, device: torch.device | str) -> Outcome:
    """Run a kernel of a backend by its factory's name. A fallback to another backend is an error."""
    with dispatch.using(dispatch.Settings(backend, strict=True)):
        found = execute(own_factory(name, backend), call, device, watch=backend == "triton")
    if torch.device(device).type == "cuda" and torch.cuda.memory_reserved() > _KEPT:
        torch.cuda.empty_cache()  # other processes share the GPU's memory
    return found


def own_factory(name: str, backend: str) -> dispatch.Factory:
    """The factory of a kernel, sure to be the backend's own.

    Raises:
        KernelUnavailableError: it was made in another module than those of the backend.
    """
    found = dispatch.factory(name)
    if not found.__module__.startswith(f"deepinfer.ops.{backend}."):
        raise KernelUnavailableError(
            f"{name} of the {backend} backend ({FAMILY_OF[name]}) is that of {found.__module__}"
        )
    return found


def problems(call: Call, expected: Outcome, got: Outcome) -> list[str]:
    """What is different between two outcomes of a call; empty where nothing is."""
    found = []
    for one in call.arguments:
        if one.output and one.tolerance is not None and isinstance(one.value, torch.Tensor):
            found.append(difference(one.name, expected.results[one.name], got.results[one.name], one.tolerance))
    if call.judge is not None:
        found.append(call.judge(expected.results, got.results))
    for side, side_outcome in (("expected side", expected), ("", got)):
        for index, (before, after) in enumerate(zip(side_outcome.before, side_outcome.rest, strict=True)):
            wrong = difference(f"bytes outside of every output, storage {index}", before, after)
            found.append(f"{side}: {wrong}" if wrong and side else wrong)
    if got.operators:
        asked = ", ".join(dict.fromkeys(got.operators))
        found.append(f"asks PyTorch for more than allocation, views and fills: {asked}")
    return [text for text in found if text]


def all_bytes(value: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as bytes, without a copy."""
    whole = torch.empty(0, dtype=torch.uint8, device=value.device)
    return whole.set_(value.untyped_storage(), 0, (value.untyped_storage().nbytes(),))  # type: ignore[call-overload,no-any-return]


def view_of(storage: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor over the bytes `storage`, of the dtype, shape, strides and offset of `like`."""
    moved = torch.empty(0, dtype=like.dtype, device=storage.device)
    return moved.set_(storage.untyped_storage(), like.storage_offset(), like.shape, like.stride())


def _bytes_of_no_output(arguments: Sequence[Argument]) -> list[torch.Tensor]:
    """For every storage in the order of arguments: its bytes that no output covers, as they are now."""
    wholes: Storages = {}
    covered: Storages = {}
    for one in arguments:
        value = one.value
        if not isinstance(value, torch.Tensor) or value.untyped_storage().nbytes() == 0:
            continue
        key = value.untyped_storage().data_ptr()
        if key not in wholes:
            wholes[key] = all_bytes(value)
            covered[key] = torch.zeros_like(wholes[key], dtype=torch.bool)
        if one.output:
            size = value.element_size()
            shape, stride = (*value.shape, size), (*(step * size for step in value.stride()), 1)
            covered[key].as_strided(shape, stride, value.storage_offset() * size).fill_(True)
    return [_picked(whole, covered[key]) for key, whole in wholes.items()]


def _picked(whole: torch.Tensor, covered: torch.Tensor) -> torch.Tensor:
    """On the CPU: the bytes that are not covered. In parts, as PyTorch picks by indices of eight bytes for each."""
    parts = [slice(first, first + _AT_A_TIME) for first in range(0, len(whole), _AT_A_TIME)]
    return torch.cat([whole[:0].cpu(), *(whole[part][~covered[part]].cpu() for part in parts)])
