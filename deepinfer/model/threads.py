"""PyTorch's threads on a CPU, as many as the model's products are worth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from deepinfer import envs

_SMALL = 1024
"""Hidden sizes below it: a thread's share of a product is then done before the threads have met."""


@contextlib.contextmanager
def fitting_threads(hidden: int, device: torch.device) -> Iterator[None]:
    """Within the block, one thread where the model is small and on a CPU, and OMP_NUM_THREADS is not set.

    Threads wait for each other by spinning. On a machine that has other work to do, two of them took 14 times as long
    as one for a step of the tiny model.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or hidden >= _SMALL or threads == 1 or envs.read(envs.OMP_NUM_THREADS):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
