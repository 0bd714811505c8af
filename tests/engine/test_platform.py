"""What the machine is found to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepinfer import platform


def test_without_a_driver_it_is_a_cpu_with_a_reason() -> None:
    if Path("/proc/driver/nvidia/version").exists() or torch.cuda.is_available():
        pytest.skip("there is a driver here: the gpu test covers it")
    found = platform.detect()
    assert (found.kind, found.driver, found.gpus) == ("cpu", "", ())
    assert "libcuda.so.1" in found.reason


@pytest.mark.gpu
def test_the_gpu_is_what_torch_says() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    found = platform.detect()
    theirs = torch.cuda.get_device_properties(0)
    assert (found.kind, len(found.gpus)) == ("cuda", torch.cuda.device_count())
    gpu = found.gpus[0]
    assert (gpu.name, gpu.sm_count) == (theirs.name, theirs.multi_processor_count)
    assert gpu.sm == 10 * theirs.major + theirs.minor
    assert int(found.driver.split(".")[0]) >= 525


@pytest.mark.parametrize(
    ("text", "version"),
    [("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@x)\n", "580.65.06"),
     ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun\nGCC version:  12.2.0\n", "570.133.20")],
)  # fmt: skip
def test_the_drivers_own_file(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "version").write_text(text)
    assert platform.driver_version(tmp_path / "version") == version


@pytest.mark.parametrize(
    ("driver", "cuda", "needed"),
    [("570.133.20", "13.0", "580"), ("579.99", "13.2", "580"), ("580.65.06", "13.0", ""), ("570.133.20", "12.8", ""),
     ("520.1", "12.8", "525"), ("", "13.0", ""), ("570.1", "", "")],
)  # fmt: skip
def test_drivers_that_are_too_old(driver: str, cuda: str, needed: str) -> None:
    problem = platform.driver_problem(driver, cuda, "torch")
    assert (f"needs {needed} or newer" in problem) if needed else problem == ""


def test_infiniband_needs_the_list_and_the_files(tmp_path: Path) -> None:
    assert platform.infiniband_devices(tmp_path) == ()
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert platform.infiniband_devices(tmp_path) == (), "a container may see the host's list without the files"
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/rdma_cm").touch()
    assert platform.infiniband_devices(tmp_path) == ()
    (tmp_path / "dev/infiniband/uverbs0").touch()
    assert platform.infiniband_devices(tmp_path) == ("mlx5_0",)


def test_nvcc_on_the_search_path_or_in_its_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tmp_path / "nvcc"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert platform.system_nvcc(usual) is None
    usual.touch()
    assert platform.system_nvcc(usual) is None, "it cannot be run"
    usual.chmod(0o755)
    assert platform.system_nvcc(usual) == usual
