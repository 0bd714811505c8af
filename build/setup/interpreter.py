"""Which Python the target `host` builds against, and whether it has torch."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from build.cache import REPOSITORY
from build.call import CallFailed, call
from build.errors import EnvironmentCannot


def host_python() -> Path:
    """DEEPINFER_PYTHON, else `.venv`'s Python; absolute. Raises EnvironmentCannot when there is no such program."""
    given = os.environ.get("DEEPINFER_PYTHON")
    if not given:
        own = REPOSITORY / ".venv" / "bin" / "python"
        return own if own.exists() else Path(sys.executable)
    found = shutil.which(given)
    if found is None:
        raise EnvironmentCannot(
            f"DEEPINFER_PYTHON={given} is not a program", next_step="set it to a Python of 3.11 or later"
        )
    # Not resolved: the Python of a virtual environment is a link, and would become another interpreter.
    return Path(found).absolute()


def require_torch(python: Path) -> str:
    """The version of torch that `python` has.

    Raises:
        EnvironmentCannot: it has none, or it cannot be imported; with the command that installs it.
    """
    program = "import json, torch; print(json.dumps(torch.__version__))"
    try:
        done = call(python, "-P", "-c", program, quiet=True, timeout=300)
    except CallFailed as failed:
        own = python == REPOSITORY / ".venv" / "bin" / "python"
        by_pip = f"{shlex.quote(str(python))} -m pip install torch==2.13.0"
        install = "./run -- python -c 'import torch'" if own else by_pip
        missing = "No module named 'torch'" in failed.output
        raise EnvironmentCannot(
            f"{python} has no torch" if missing else f"torch of {python} cannot be imported",
            cause="" if missing else failed.tail.splitlines()[-1] if failed.tail else "",
            next_step=f"{install}, or set DEEPINFER_PYTHON to a Python that has torch",
        ) from failed
    version: str = json.loads(done.stdout.strip().splitlines()[-1])
    return version
