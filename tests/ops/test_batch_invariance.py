"""A row's bits do not depend on the rows beside it in any kernel of the model: DEEPINFER_BATCH_INVARIANT's demand."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.ops.names import ALL_FAMILIES, MODEL_FAMILIES
from tests.ops.rows_alone import LARGE, NAMES, SMALL, factories, problems

ROOT = Path(__file__).resolve().parents[2]
WHOLE_NUMBERS = {"kv_index_cat", "load_paged_kv_cache", "flash_mla_utils", "get_kv_index", "prepare_decode_metadata",
                 "swa_index", "state_cache", "structure_output"}  # fmt: skip
"""Families that the engine runs and that move or count things: there is no sum whose order could depend on rows."""

DEEP_GEMM = {"per128"}
"""Families of `--gemm deep_gemm`, which the demand refuses."""


def _imported(folder: str) -> set[str]:
    """The families whose interfaces the modules of a folder import."""
    found = set()
    for path in (ROOT / "deepinfer" / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deepinfer.ops."):
                found.add(str(node.module).rpartition(".")[2])
    return found & set(ALL_FAMILIES)


def test_every_kernel_of_a_forward_has_a_subject() -> None:
    covered = set().union(*map(factories, NAMES))
    own = {name for family, names in MODEL_FAMILIES.items() if family not in DEEP_GEMM for name in names}
    assert own <= covered
    families = {family for family, names in ALL_FAMILIES.items() if covered & set(names)}
    assert _imported("model") | _imported("sampling") | _imported("cache") <= families | WHOLE_NUMBERS | DEEP_GEMM


@pytest.mark.parametrize("name", NAMES)
def test_reference(name: str) -> None:
    assert problems(name, SMALL, "reference") == []


def test_interpreted() -> None:
    """In a process of its own, as Triton is told at its import that it interprets."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.rows_alone"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {name: found for name, found in json.loads(done.stdout).items() if found} == {}


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name: str) -> None:
    """At the real hidden size, rows alone on both sides of the borders of tiles."""
    assert problems(name, LARGE, "triton") == []
