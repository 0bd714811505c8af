"""What figures depend on: device, driver, versions, commit."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def gather(device: torch.device) -> dict[str, Any]:
    """Of this process: JSON-able; what cannot be learnt is ''."""
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "commit": _said("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"),
        **_triton(),
    }
    if device.type != "cuda":
        return {**found, "device": "cpu", "driver": "", "multiprocessors": 0, "cache_bytes": 0}
    properties = torch.cuda.get_device_properties(device)
    return {
        **found,
        "device": properties.name,
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
        "multiprocessors": properties.multi_processor_count,
        "cache_bytes": properties.L2_cache_size,
    }


def _triton() -> dict[str, str]:
    try:
        import triton
        from triton import knobs

        ptxas = knobs.nvidia.ptxas
        return {"triton": triton.__version__, "ptxas": str(ptxas.version)}
    except Exception:  # no Triton, or none for NVIDIA: the reference is measured without it
        return {"triton": "", "ptxas": ""}


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
