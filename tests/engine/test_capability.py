"""A GPU that the Triton kernels are not made for is told in words, before weights are read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from deepinfer import platform
from deepinfer.engine.placement import kernels_of
from deepinfer.errors import DeepInferError
from deepinfer.ops import dispatch


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gpus = (platform.Gpu("NVIDIA A100", 80, 108, 80 << 30), platform.Gpu("NVIDIA H20", 90, 78, 96 << 30))
    monkeypatch.setattr(platform, "detect", lambda: platform.Platform("cuda", "580.65.06", "13.0", gpus, ""))
    with dispatch.using("reference"):  # the environment's settings are read once a process, and not of this machine
        yield


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_triton_on_an_older_gpu_is_refused(device: str) -> None:
    with pytest.raises(DeepInferError, match=r"9\.0 \(Hopper\) or newer, and NVIDIA A100 has 8\.0") as caught:
        kernels_of(None, torch.device(device))
    assert "--backend reference" in caught.value.next_step


def test_the_reference_runs_there_and_triton_on_the_other() -> None:
    assert kernels_of("reference", torch.device("cuda", 0)).backend == "reference"
    assert kernels_of(None, torch.device("cuda", 1)).backend == "triton"
