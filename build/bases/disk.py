"""Whether the engine's disk has room: known where the engine runs on this machine, unknown elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from build.containers import Engine
from build.errors import EnvironmentCannot


def free_gb(engine: Engine) -> float | None:
    """Free space, in GB (10^9 bytes), of the engine's data root; None when the engine is on another machine."""
    root = Path(str(engine.client.info().get("DockerRootDir", "")))
    # The docker package's name for a socket of this machine; ssh and TCP have others.
    if engine.client.api.base_url != "http+docker://localhost" or not root.is_dir():
        return None
    return shutil.disk_usage(root).free / 1e9


def need(engine: Engine, wanted_gb: float, what: str) -> None:
    """Stop before a long download where `what` cannot fit. Raises EnvironmentCannot with both figures."""
    free = free_gb(engine)
    if free is not None and free < wanted_gb:
        raise EnvironmentCannot(
            f"{what} needs {wanted_gb:.1f} GB; the engine's disk has {free:.1f} GB free",
            next_step="remove images that you do not need (`docker image ls`, `./run clean`), then run it again",
        )
