"""The door through which kernels are started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deepinfer.ops.launch import cdiv, compiling, launch, launching, multiprocessors, next_power_of_2


class Kernel:
    """Records how it is started, in the place of a jitted function, which a CPU cannot start."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **constants: self.started.append((grid, arguments, constants, launching()))

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **constants: Any) -> str:
        self.started.append("compiled")
        return f"{grid} {arguments} {constants}"


def test_a_launch_is_one_while_it_lasts() -> None:
    kernel = Kernel()
    assert not launching()
    launch(kernel, (2, 3), "x", BLOCK=16)
    assert kernel.started == [((2, 3), ("x",), {"BLOCK": 16}, True)]
    assert not launching()


def test_it_is_over_after_an_error_too() -> None:
    class Failing(Kernel):
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        launch(Failing(), (1,))
    assert not launching()


@pytest.mark.parametrize("grid", [(0,), (3, 0), (0, 1, 1)])
def test_an_empty_grid_starts_nothing(grid: tuple[int, ...]) -> None:
    kernel = Kernel()
    launch(kernel, grid)
    with compiling(lambda *_: pytest.fail("compiled for nothing")):
        launch(kernel, grid)
    assert kernel.started == []


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), (-1,), (1, 65536), (1, 1, 65536), (2**31,), (0, -1)])
def test_a_grid_that_cuda_does_not_take_is_refused(grid: tuple[int, ...]) -> None:
    kernel = Kernel()
    with pytest.raises(ValueError, match="cannot be launched"):
        launch(kernel, grid)
    assert kernel.started == []


def test_while_compiling_nothing_is_started() -> None:
    kernel, seen = Kernel(), []
    with compiling(lambda jitted, compiled: seen.append((jitted, compiled))):
        launch(kernel, (4,), 7, BLOCK=2)
    assert seen == [(kernel, "(4,) (7,) {'BLOCK': 2}")] and kernel.started == ["compiled"]
    launch(kernel, (4,), 7)
    assert len(kernel.started) == 2


def test_multiprocessors_are_the_interpreter_s_or_those_compiled_for() -> None:
    assert multiprocessors(torch.device("cpu")) == 2
    with compiling(lambda *_: None):
        assert multiprocessors(torch.device("cpu")) == 132
    assert multiprocessors(torch.device("cpu")) == 2


@pytest.mark.gpu
def test_multiprocessors_are_the_device_s() -> None:
    device = torch.device("cuda", 0)
    assert multiprocessors(device) == torch.cuda.get_device_properties(device).multi_processor_count


def test_sizes() -> None:
    assert [cdiv(value, 4) for value in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert cdiv(2**62, 3) == (2**62 + 2) // 3
    assert [next_power_of_2(value) for value in (-1, 0, 1, 2, 3, 4, 5, 129280)] == [1, 1, 1, 2, 4, 4, 8, 131072]
