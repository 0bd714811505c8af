"""Where a model runs, and where its kernels come from."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import torch

from deepinfer import envs, platform
from deepinfer.errors import DeepInferError, OptionError, shown
from deepinfer.ops import dispatch

Backend = Literal["triton", "reference"]
OLDEST_SM = 90
"""The compute capability, times ten, that the Triton kernels are made for."""


def device_of(asked: str | torch.device | None) -> torch.device:
    """The device to run on.

    Raises:
        ValueError: it is of another kind.
        DeepInferError: there is no such device, or this PyTorch cannot use it.
    """
    machine = platform.detect()
    if asked is None:  # a GPU that an unfit PyTorch cannot use is told, a PyTorch for CPUs runs there
        asked = "cuda" if machine.kind == "cuda" and torch.version.cuda is not None else "cpu"
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise OptionError("device", f"must be cuda, cuda:N or cpu, not {shown(asked)}")
    if device.type == "cpu":
        return torch.device("cpu")
    index = device.index or 0
    if index >= len(machine.gpus):
        raise DeepInferError(
            f"there is no device {asked}",
            cause=machine.reason or f"the driver sees {len(machine.gpus)} GPUs, counted from 0",
            next_step="--device cpu runs on the processor; `deepinfer env` shows GPUs and driver",
        )
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        raise DeepInferError(
            f"PyTorch {torch.__version__} cannot use the GPU",
            cause=f"it is built {built}, and the driver is {machine.driver}, which runs CUDA {machine.driver_cuda}",
            next_step="use a PyTorch that fits the driver, or --device cpu",
        )
    return torch.device("cuda", index)


def tables_on(asked: str | None, device: torch.device) -> torch.device:
    """Where the n-gram tables of a model on `device` go: beside the other weights, or to the host.

    Raises:
        ValueError: they are to go elsewhere.
    """
    if asked is None or asked == device.type or asked == str(device):
        return device
    if asked == "cpu":
        return torch.device("cpu")
    if isinstance(asked, str) and (asked == "cuda" or asked.startswith("cuda:")):
        raise OptionError(
            "engram_device", f"{asked}: the model is on {device}, and its n-gram tables stay there or go to cpu"
        )
    raise OptionError("engram_device", f"must be cpu or cuda, not {shown(asked)}")


def kernels_of(asked: Backend | None, device: torch.device) -> dispatch.Settings:
    """Where kernels come from: as asked, else as the environment says, else what the device is fast with.

    Raises:
        ValueError: they are to come from elsewhere.
        DeepInferError: the device or the environment does not allow it.
    """
    if asked not in (None, *get_args(Backend)):
        raise OptionError("backend", f"must be {' or '.join(get_args(Backend))}, not {shown(asked)}")
    backend = asked
    if backend is None and not envs.OPS_BACKEND.is_set:
        backend = "triton" if device.type == "cuda" else "reference"
    chosen = dispatch.settings() if backend is None else dataclasses.replace(dispatch.settings(), backend=backend)
    interpreted = envs.read(envs.TRITON_INTERPRET) not in ("", "0")
    if chosen.backend == "triton" and device.type == "cpu" and not interpreted:
        raise DeepInferError(
            "the triton backend needs a GPU, and the model is to run on the CPU",
            cause="--backend or DEEPINFER_OPS_BACKEND says triton",
            next_step="--backend reference",
        )
    if chosen.backend == "triton" and device.type == "cuda":
        _check_capability(device)
    return batch_invariant(chosen) if envs.BATCH_INVARIANT.get() else chosen


def _check_capability(device: torch.device) -> None:
    """The Triton kernels use instructions that older GPUs lack, and would be told by the assembler only."""
    index = device.index or 0
    for gpu in platform.detect().gpus[index : index + 1]:
        if gpu.sm < OLDEST_SM:
            raise DeepInferError(
                f"the triton backend needs a GPU of compute capability {OLDEST_SM / 10} (Hopper) or newer, and "
                f"{gpu.name} has {gpu.sm / 10}",
                cause="the kernels use instructions that came with Hopper",
                next_step="take another GPU, or --backend reference, which is slow",
            )


def batch_invariant(chosen: dispatch.Settings) -> dispatch.Settings:
    """The settings with which every kernel adds in an order that depends on its row alone.

    Prefill and decode give a row the same bits by kernels of one backend, not by those of two: no kernel may fall back.

    Raises:
        DeepInferError: one is to.
    """
    if chosen.backend == "triton" and chosen.fallbacks:
        raise DeepInferError(
            f"DEEPINFER_BATCH_INVARIANT=1 cannot be kept: {', '.join(sorted(chosen.fallbacks))} would come from "
            "the reference backend, and the other kernels from triton",
            cause="DEEPINFER_OPS_FALLBACK names them; a row's sums have another order there",
            next_step="unset one of the two variables, or take all kernels from --backend reference",
        )
    return dataclasses.replace(chosen, strict=True)
