"""What the tests of the kernels share: Triton's interpreter, which has to be chosen before Triton is imported."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@functools.cache
def _interpreted(family: str) -> dict[str, list[str]]:
    """Every case of a family that is not large, in a process of its own: case name -> what differs from reference."""
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer.ops.ab", family, "--device", "cpu", "--json"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return {f"{row['factory']}/{row['case']}": row["problems"] for row in json.loads(done.stdout)}


@pytest.fixture(scope="session")
def interpreted() -> Callable[[str], dict[str, list[str]]]:
    """Results of the Triton backend in the interpreter against the reference, by family."""
    return _interpreted
