"""What Docker tests have in common."""

from __future__ import annotations

import pytest

from build.containers import Engine
from build.errors import EnvironmentCannot


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The engine that the environment names."""
    try:
        return Engine.connect()
    except EnvironmentCannot as problem:
        pytest.skip(f"needs a Docker engine: {problem.what}")
