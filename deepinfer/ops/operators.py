"""What a Triton kernel's host code may ask of PyTorch: allocation, views and fills. Anything else is work that belongs
into the kernel, a copy, or a wait for the device.
"""

# The modes are untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.ops.launch import launching

_ALLOCATIONS = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::full", "aten::full_like", "aten::new_full", "aten::zeros", "aten::zeros_like", "aten::new_zeros",
    "aten::ones", "aten::ones_like", "aten::new_ones",
}  # fmt: skip
_FILLS = {"aten::fill_.Scalar", "aten::zero_"}
_COPIES = {"aten::lift_fresh"}
"""Declared as views, and what is left of torch.tensor(...), which copies from the host."""


_READS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.cpu}
"""They bring values to the host, on a CPU without any operator."""


class Watched:
    """Within the block, gathers in `found` the names of the operators that are none of those allowed.

    What is called while a kernel is being started does not count: Triton's interpreter copies there.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._modes = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._modes.enter_context(_Operators(self.found))
        self._modes.enter_context(_Reads(self.found))
        return self

    def __exit__(self, *raised: object) -> None:
        self._modes.close()


class _Operators(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not launching() and not allowed(func):
            self._found.append(str(func))
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not launching() and func in _READS:
            self._found.append(f"Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


def allowed(operator: Any) -> bool:
    """Whether an operator (torch.ops.aten.NAME.OVERLOAD) allocates, makes a view, or fills with a number."""
    name = str(operator.name())
    base = name.partition(".")[0]
    if base in _COPIES:
        return False
    return base in _ALLOCATIONS or name in _FILLS or _is_view(operator)


def _is_view(operator: Any) -> bool:
    returned = [result.alias_info for result in operator._schema.returns]
    return bool(returned) and all(info is not None and not info.is_write for info in returned)
