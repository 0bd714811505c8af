"""Checks of the interface functions' arguments: every refusal names the function, the argument, and what was found."""

from __future__ import annotations

from collections.abc import Iterable

import torch

Dim = int | str | None


class Arguments:
    """The arguments of one call. Sizes given by a letter must agree: `shape=("Q", "V")` binds and then compares.

    Raises ValueError (shape, stride, device, range) or TypeError (not a tensor, dtype), at the first that is wrong.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self.sizes: dict[str, tuple[int, str]] = {}
        self.device: tuple[torch.device, str] | None = None

    def tensor(
        self,
        name: str,
        value: object,
        dtype: torch.dtype | Iterable[torch.dtype],
        shape: tuple[Dim, ...],
        *,
        rows: str = "strided",
        multiple: int = 1,
    ) -> torch.Tensor:
        """`value` as a tensor of a dtype (or one of several) and a shape.

        Args:
            shape: a size each: a number, a letter for a size that others share, None for any.
            rows: "contiguous" (the whole tensor), "strided" (only the last dimension), "any".
            multiple: what the strides of all but the last dimension are multiples of (of dimensions larger than 1).
        """
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{self.function}: {name} must be a tensor, not {type(value).__name__}")
        allowed = (dtype,) if isinstance(dtype, torch.dtype) else tuple(dtype)
        if value.dtype not in allowed:
            wanted = " or ".join(str(one).removeprefix("torch.") for one in allowed)
            raise TypeError(f"{self.function}: {name} must be {wanted}, not {str(value.dtype).removeprefix('torch.')}")
        self._device(name, value)
        self._shape(name, value, shape)
        self._strides(name, value, rows, multiple)
        return value

    def optional(
        self, name: str, value: object, dtype: torch.dtype | Iterable[torch.dtype], shape: tuple[Dim, ...], **rules: str
    ) -> torch.Tensor | None:
        """As `tensor`; None passes."""
        return None if value is None else self.tensor(name, value, dtype, shape, **rules)  # type: ignore[arg-type]

    def size(self, letter: str) -> int:
        """A size that was bound."""
        return self.sizes[letter][0]

    def whole_number(self, name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
        """`value` as an int in a range."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{self.function}: {name} must be an int, not {type(value).__name__}")
        if value < at_least or (at_most is not None and value > at_most):
            upper = "" if at_most is None else f" and at most {at_most}"
            raise ValueError(f"{self.function}: {name} must be at least {at_least}{upper}, not {value}")
        return value

    def one_of(self, name: str, value: object, allowed: Iterable[object]) -> None:
        """Refuse a value that is none of those allowed."""
        values = tuple(allowed)
        if value not in values:
            raise ValueError(f"{self.function}: {name} must be one of {', '.join(map(repr, values))}, not {value!r}")

    def require(self, condition: bool, name: str, why: str) -> None:
        """Refuse an argument for a reason of the function's own."""
        if not condition:
            raise ValueError(f"{self.function}: {name} {why}")

    def _device(self, name: str, value: torch.Tensor) -> None:
        if self.device is None:
            self.device = (value.device, name)
        elif value.device != self.device[0]:
            raise ValueError(
                f"{self.function}: {name} is on {value.device}, and {self.device[1]} on {self.device[0]}: "
                "all must be on one device"
            )

    def _shape(self, name: str, value: torch.Tensor, shape: tuple[Dim, ...]) -> None:
        found = tuple(value.shape)
        shown = "[" + ", ".join("*" if size is None else str(size) for size in shape) + "]"
        if len(found) != len(shape):
            raise ValueError(f"{self.function}: {name} must have the shape {shown}, not {list(found)}")
        for size, expected in zip(found, shape, strict=True):
            if isinstance(expected, str):
                bound, owner = self.sizes.setdefault(expected, (size, name))
                if bound != size:
                    raise ValueError(
                        f"{self.function}: {name} has the shape {list(found)}, where {shown} is needed "
                        f"and {owner} has {expected} = {bound}"
                    )
            elif expected is not None and size != expected:
                raise ValueError(f"{self.function}: {name} must have the shape {shown}, not {list(found)}")

    def _strides(self, name: str, value: torch.Tensor, rows: str, multiple: int) -> None:
        if rows == "contiguous" and not value.is_contiguous():
            raise ValueError(f"{self.function}: {name} must be contiguous; its strides are {value.stride()}")
        if rows == "strided" and value.dim() and value.shape[-1] > 1 and value.stride(-1) != 1:
            raise ValueError(f"{self.function}: the last dimension of {name} must be contiguous: {value.stride()}")
        for size, stride in zip(value.shape[:-1], value.stride()[:-1], strict=True):
            if size > 1 and stride % multiple:
                raise ValueError(
                    f"{self.function}: the strides of {name} must be multiples of {multiple}, not {value.stride()}"
                )
