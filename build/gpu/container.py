"""The GPU stage inside an image: a fresh container a program, with every GPU, as `docker run --gpus all` gives them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docker.errors import APIError
from docker.types import DeviceRequest, Ulimit

from build.call import CallFailed
from build.container import RunResult
from build.containers import Engine
from build.gpu.stage import TRITONS
from build.inspection import Inspection
from build.triton_versions import triton_dir

PLACE = "/tmp/deepinfer-tritons"
PASSED_ON = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
"""Switches of the machine's owner that a program in a container has to obey as well."""


def tritons_for(inspection: Inspection) -> dict[str, Path]:
    """Every Triton of the stage, unpacked here for the image's Python; fetched if it must be."""
    return {version: triton_dir(version, python_tag=inspection.python_tag) for version in TRITONS}


def container_launch(
    engine: Engine, image: str, inspection: Inspection, tritons: Mapping[str, Path]
) -> tuple[Callable[[Sequence[str], float], RunResult], dict[str, str]]:
    """What `run_stage` needs: the launcher, and where each Triton will lie in a container."""
    inside = {version: f"{PLACE}/{version}" for version in tritons}
    local = {inside[version]: folder for version, folder in tritons.items()}

    def launch(argv: Sequence[str], limit: float) -> RunResult:
        files: dict[str, bytes | Path] = {word: local[word] for word in argv if word in local}
        try:
            return engine.run(
                image, [inspection.executable, *argv[1:]], files=files, timeout=limit,
                env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
                device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])], ipc_mode="host",
                ulimits=[Ulimit(name="memlock", soft=-1, hard=-1), Ulimit(name="stack", soft=67108864, hard=67108864)],
                owner="gpu",
            )  # fmt: skip
        except APIError as problem:
            # Most often: no NVIDIA container toolkit, so that the engine knows no GPUs.
            raise CallFailed([image, *argv[:1]], 125, str(problem.explanation or problem), None) from problem

    return launch, inside
