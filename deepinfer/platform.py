"""The machine: GPUs and driver as the driver itself reports them, InfiniBand, and the system's CUDA compiler.

Asks the driver's library directly: no torch is needed, and no CUDA context is made.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute
_NO_DEVICE = 100  # CUresult
OLDEST_DRIVER = {12: 525, 13: 580}  # by CUDA's major version


@dataclass(frozen=True)
class Gpu:
    """One GPU. `sm`: compute capability as 10*major + minor (90 is Hopper); `sm_count`: 78 on H20, 132 on H200."""

    name: str
    sm: int
    sm_count: int
    memory_bytes: int


@dataclass(frozen=True)
class Platform:
    """`kind`: "cuda" or "cpu"; `reason` says why the latter.

    `driver`: such as 580.65.06, or ''. `driver_cuda`: the newest CUDA that it runs, such as 13.0, or ''.
    """

    kind: str
    driver: str
    driver_cuda: str
    gpus: tuple[Gpu, ...]
    reason: str


def detect() -> Platform:
    """Ask the driver. A driver that is broken is a "cpu" platform with the reason; a hung one hangs the caller."""
    driver = driver_version()
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Platform("cpu", driver, "", (), "no NVIDIA driver here: libcuda.so.1 was not found")
    newest = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(newest))
    driver_cuda = f"{newest.value // 1000}.{newest.value % 1000 // 10}" if newest.value else ""
    status = library.cuInit(0)
    count = ctypes.c_int()
    status = status or library.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or (status == 0 and count.value == 0):
        return Platform("cpu", driver, driver_cuda, (), "the driver sees no GPU (CUDA_VISIBLE_DEVICES may hide it)")
    if status != 0:
        return Platform("cpu", driver, driver_cuda, (), f"the driver does not start: {_error_name(library, status)}")
    gpus = tuple(_describe(library, index) for index in range(count.value))
    return Platform("cuda", driver, driver_cuda, gpus, "")


def _error_name(library: ctypes.CDLL, status: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    return f"{name.value.decode()} ({status})" if name.value else f"CUDA error {status}"


def _describe(library: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    sm = 10 * attribute(_MAJOR) + attribute(_MINOR)
    return Gpu(name.value.decode(errors="replace"), sm, attribute(_MULTIPROCESSORS), memory.value)


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The driver's version, such as 580.65.06; '' where none is loaded."""
    try:
        text = proc.read_text()
    except OSError:
        text = ""
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else _driver_version_from_nvml()


def _driver_version_from_nvml() -> str:
    """For containers that hide /proc/driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() != 0:
        return ""
    status = library.nvmlSystemGetDriverVersion(text, len(text))
    library.nvmlShutdown()
    return text.value.decode(errors="replace") if status == 0 else ""


def driver_problem(driver: str, cuda: str, what: str) -> str:
    """Why this driver cannot run code made by CUDA `cuda` ('' if it can, or if either is unknown).

    Args:
        driver: such as 570.133.20. cuda: such as 13.0. what: whose code it is, for the message.
    """
    if not driver or not cuda:
        return ""
    needed = OLDEST_DRIVER.get(int(cuda.split(".")[0]), 0)
    if int(driver.split(".")[0]) >= needed:
        return ""
    return f"driver {driver} is too old for {what} (CUDA {cuda}): it needs {needed} or newer"


def infiniband_devices(root: Path = Path("/")) -> tuple[str, ...]:
    """InfiniBand devices that this process could open.

    Both the kernel's list and the device files count: a container may see the host's list without the files.
    """
    listed = _entries(root / "sys/class/infiniband")
    files = [name for name in _entries(root / "dev/infiniband") if name.startswith("uverbs")]
    return tuple(listed) if files else ()


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def system_nvcc(usual: Path = Path("/usr/local/cuda/bin/nvcc")) -> Path | None:
    """The nvcc on the search path or in its usual place, or None."""
    found = shutil.which("nvcc") or shutil.which(str(usual))
    return Path(found) if found else None
