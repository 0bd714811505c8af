"""Run a case on a device and compare what two backends made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from deepinfer.ops import dispatch
from deepinfer.ops.case import Argument, Call
from deepinfer.ops.tolerance import difference

Storages = dict[int, torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a call left behind, on the CPU.

    results: every tensor argument by name. returned: the tensors that the kernel returned, if it did.
    rest: storage by storage, the bytes that belong to no output; `before` holds them as they were.
    """

    results: Mapping[str, torch.Tensor]
    rest: Sequence[torch.Tensor]
    before: Sequence[torch.Tensor]


def relocated(call: Call, device: torch.device | str) -> Call:
    """The call with its tensors copied to a device: strides, offsets and shared storages stay as they are."""
    moved: Storages = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        key = storage.data_ptr()
        if key not in moved or key == 0:
            moved[key] = _all_bytes(value).to(device, copy=True)
        return _view_of(moved[key], value)

    return replace(call, arguments=[replace(one, value=move(one.value)) for one in call.arguments])


def execute(factory: dispatch.Factory, call: Call, device: torch.device | str) -> Outcome:
    """Run a factory's kernel on copies of the inputs; the call's own tensors stay as they are."""
    here = relocated(call, device)
    before = _bytes_of_no_output(here.arguments)
    factory(*call.parameters, **call.named)(*(one.value for one in here.arguments))
    results = {one.name: one.value.cpu() for one in here.arguments if isinstance(one.value, torch.Tensor)}
    return Outcome(results, _bytes_of_no_output(here.arguments), before)


def run(name: str, call: Call, backend: str, device: torch.device | str) -> Outcome:
    """Run a kernel of a backend by its factory's name. A fallback to another backend is an error."""
    with dispatch.using(dispatch.Settings(backend, strict=True)):
        return execute(dispatch.factory(name), call, device)


def problems(call: Call, expected: Outcome, got: Outcome) -> list[str]:
    """What is different between two outcomes of a call; empty where nothing is."""
    found = []
    for one in call.arguments:
        if one.output and one.tolerance is not None and isinstance(one.value, torch.Tensor):
            found.append(difference(one.name, expected.results[one.name], got.results[one.name], one.tolerance))
    if call.judge is not None:
        found.append(call.judge(expected.results, got.results))
    for side, outcome in (("expected side", expected), ("", got)):
        for index, (before, after) in enumerate(zip(outcome.before, outcome.rest, strict=True)):
            wrong = difference(f"bytes outside of every output, storage {index}", before, after)
            found.append(f"{side}: {wrong}" if wrong and side else wrong)
    return [text for text in found if text]


def _all_bytes(value: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(0, dtype=torch.uint8, device=value.device)
    return whole.set_(value.untyped_storage(), 0, (value.untyped_storage().nbytes(),))  # type: ignore[call-overload,no-any-return]


def _view_of(storage: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
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
            wholes[key] = _all_bytes(value)
            covered[key] = torch.zeros_like(wholes[key], dtype=torch.bool)
        if one.output:
            size = value.element_size()
            shape, stride = (*value.shape, size), (*(step * size for step in value.stride()), 1)
            covered[key].as_strided(shape, stride, value.storage_offset() * size).fill_(True)
    return [whole[~covered[key]].cpu() for key, whole in wholes.items()]
