"""Values of a dump: how they stand in its header, and what is accepted from one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

FORMAT, VERSION = "deepinfer-ab", 1
FILE = "calls.zip"
HEADER = "header.json"
_MOST_ELEMENTS = 1 << 28
_DEPTH = 16
Make = Callable[[str, dict[str, Any]], Any]
"""(class name, fields) -> what stands for a dataclass."""


class DumpError(ValueError):
    """A file that is no dump, or cannot be trusted: the text says what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Value:
    """One argument of a recorded call: a tensor, a number or None; output: the kernel writes it."""

    name: str
    output: bool
    value: Any


def storage_key(value: torch.Tensor) -> int:
    """Equal for tensors that share a storage."""
    return value.untyped_storage().data_ptr() if value.untyped_storage().nbytes() else 0


def encoded(value: Any, storages: Mapping[int, int] | None = None) -> Any:
    """A value as JSON holds it. Raises TypeError for what cannot travel."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": value.hex()}
        case torch.dtype():
            return {"dtype": _dtype_name(value)}
        case torch.Tensor() if storages is not None:
            return {
                "tensor": _dtype_name(value.dtype), "shape": list(value.shape), "stride": list(value.stride()),
                "offset": value.storage_offset(), "storage": storages[storage_key(value)],
            }  # fmt: skip
        case tuple() | list():
            return {type(value).__name__: [encoded(one) for one in value]}
    if dataclasses.is_dataclass(value):
        fields = {field.name: encoded(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"object": type(value).__name__, "fields": fields}
    raise TypeError(f"a {type(value).__name__} cannot be written into a dump")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise DumpError(otherwise)


def as_list(value: Any) -> list[Any]:
    require(isinstance(value, list), "a list is missing")
    return list(value)


def as_texts(value: Any) -> dict[str, str]:
    require(isinstance(value, dict) and all(isinstance(one, str) for one in value.values()), "bad versions")
    return dict(value)


def whole(value: Any, most: int) -> int:
    require(isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most, f"bad number {value!r}")
    return int(value)


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise DumpError(f"torch {torch.__version__} has no dtype {name!r}")
    return found


def as_tensor(value: dict[str, Any], storages: Sequence[torch.Tensor]) -> torch.Tensor:
    dtype, most = _dtype(value["tensor"]), 1 << 48
    shape = [whole(size, most) for size in as_list(value.get("shape"))]
    stride = [whole(step, most) for step in as_list(value.get("stride"))]
    offset = whole(value.get("offset"), most)
    place = whole(value.get("storage"), len(storages) - 1)
    require(len(shape) == len(stride) <= 64, "shape and strides do not fit each other")
    count = 1
    for size in shape:
        count *= size
        require(count <= _MOST_ELEMENTS, f"a tensor of the shape {shape} is too large")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    storage = storages[place]
    # One without elements lies nowhere: as a part of an empty buffer it may begin behind its end.
    inside = count == 0 or (last + 1) * dtype.itemsize <= storage.numel()
    require(inside, "a tensor lies outside of its storage")
    found = torch.empty(0, dtype=dtype, device=storage.device)
    return found.set_(storage.untyped_storage(), offset, tuple(shape), tuple(stride))


def decoded(value: Any, make: Make, depth: int = 0) -> Any:
    require(depth <= _DEPTH, "a value is nested too deeply")
    match value:
        case None | bool() | int() | str():
            return value
        case {"float": str(text)}:
            return float.fromhex(text)
        case {"dtype": name}:
            return _dtype(name)
        case {"tuple": list(ones)}:
            return tuple(decoded(one, make, depth + 1) for one in ones)
        case {"list": list(ones)}:
            return [decoded(one, make, depth + 1) for one in ones]
        case {"object": str(name), "fields": dict(fields)}:
            return make(name, {key: decoded(one, make, depth + 1) for key, one in fields.items()})
    raise DumpError(f"there is no such value: {str(value)[:80]}")
