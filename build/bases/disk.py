"""Whether the engine's disk has room: known where the engine runs on this machine, unknown elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from build.containers import Engine
from build.errors import EnvironmentCannot
from build.setup import engine_answer


def engine_folder(engine: Engine) -> Path | None:
    """Where the engine keeps its layers; None where it may be on another machine, as every engine that was named."""
    root = Path(str(engine.client.info().get("DockerRootDir", "")))
    return None if engine_answer.elsewhere() or not root.is_absolute() or not root.is_dir() else root


def free_gb(engine: Engine) -> float | None:
    """Free space, in GB (10^9 bytes), of the engine's disk; None where that may be on another machine."""
    root = engine_folder(engine)
    return None if root is None else shutil.disk_usage(root).free / 1e9


def need(engine: Engine, wanted_gb: float, what: str) -> None:
    """Stop before a long download where `what` cannot fit. Raises EnvironmentCannot with both figures."""
    free = free_gb(engine)
    if free is not None and free < wanted_gb:
        raise EnvironmentCannot(
            f"{what} needs {wanted_gb:.1f} GB; the engine's disk has {free:.1f} GB free",
            next_step="remove images that you do not need (`docker image ls`, `./run clean`), then run it again",
        )
