"""DeepGEMM's products as calls that can be watched, like those of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from benchmarks.step.call import Call, See
from deepinfer.model.per128 import Library, Per128
from deepinfer.ops.per128 import PerWide

PREFIX = "deep_gemm_"
SEEING: ContextVar[See | None] = ContextVar("benchmarks_step_seeing", default=None)


class Watched:
    """A library whose calls are told to whoever watches. Parameters of a call: an alignment, where there is one.

    Arguments of a call are tensors: rows and their scales, the weight and its scales, where experts' rows end, results.
    """

    def __init__(self, own: Library) -> None:
        self._own = own

    def linear(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        self._run("linear", (), lambda: self._own.linear(rows, weight, out), *rows, *weight, out)

    def grouped(self, rows: PerWide, weight: Per128, out: torch.Tensor) -> None:
        self._run("grouped", (), lambda: self._own.grouped(rows, weight, out), *rows, *weight, out)

    def experts(
        self, rows: PerWide, weight: Per128, ends: torch.Tensor, alignment: int, expected: int, out: torch.Tensor
    ) -> None:
        def run() -> None:
            self._own.experts(rows, weight, ends, alignment, expected, out)

        self._run("experts", (alignment,), run, *rows, *weight, ends, out)

    def _run(self, name: str, parameters: tuple[Any, ...], run: Callable[[], None], *tensors: torch.Tensor) -> None:
        see = SEEING.get()
        if see is not None:
            see(Call(PREFIX + name, parameters, lambda *_: run(), tensors, {}))
        run()
