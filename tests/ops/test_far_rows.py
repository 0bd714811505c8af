"""Rows that lie more than 2^31 elements behind the first: in the interpreter and on a GPU."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest
import torch

from tests.ops.far_rows import FAR, problems, problems_of_a_wide_buffer


@functools.cache
def _interpreted() -> dict[str, list[str]] | str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.far_rows"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr[-4000:]


@pytest.mark.parametrize("factory", [*FAR, "wide buffer"])
def test_far_rows_interpreted(factory: str) -> None:
    found = _interpreted()
    assert isinstance(found, dict), found
    assert found[factory] == []


@pytest.mark.gpu
@pytest.mark.parametrize("factory", FAR)
def test_far_rows_on_a_gpu(factory: str) -> None:
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of free GPU memory: up to four tables of 9 GB")
    assert problems(factory, "cuda") == []


@pytest.mark.gpu
def test_last_row_of_a_wide_buffer_on_a_gpu() -> None:
    assert problems_of_a_wide_buffer("cuda") == []
