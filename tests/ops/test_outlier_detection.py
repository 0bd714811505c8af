"""`detect_outlier_and_abort` (kernel_spec A.19). The assertion on the device is tested in a process of its own: after
it, a process can use the device no more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from deepinfer.ops import dispatch
from deepinfer.ops.case import Case
from deepinfer.ops.outlier_detection import detect_outlier_and_abort
from tests.ops.three_ways import Interpreted, agrees_in_the_interpreter, agrees_on_a_gpu, every_case, small_cases

CHILD = """
import sys, torch
from deepinfer.ops import dispatch
from deepinfer.ops.outlier_detection import detect_outlier_and_abort
device, wait = sys.argv[1], torch.cuda.synchronize if sys.argv[1] == "cuda" else int
with dispatch.using("triton"):
    for dtype, value in zip(sys.argv[2::2], sys.argv[3::2]):
        data = torch.zeros(5000, dtype=getattr(torch, dtype), device=device)
        detect_outlier_and_abort(data, 1)
        wait()
        print("clean", flush=True)
        data[4321] = float(value)
        detect_outlier_and_abort(data, 2**40 + 7)
        wait()
        print("returned", flush=True)
"""
IDENTITY = 2**40 + 7
VALUES = [("float16", "inf"), ("bfloat16", "nan"), ("float32", "-1e11")]


def child(device: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", CHILD, device, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@small_cases("outlier_detection")
def test_interpreted(case: Case, interpreted: Interpreted) -> None:
    agrees_in_the_interpreter(case, interpreted)


@pytest.mark.gpu
@every_case("outlier_detection")
def test_on_a_gpu(case: Case) -> None:
    agrees_on_a_gpu(case)


def test_interpreter_shows_the_value() -> None:
    """The interpreter prints; it knows no assertion."""
    done = child("cpu", *(word for pair in VALUES for word in pair), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("returned")
    assert len(parts) == 4
    for part, value in zip(parts, ("inf", "nan", "-1.e+11"), strict=False):
        before, shown = part.split("clean")
        assert before.strip() == "" and shown.count("outlier: id, value, offset") == 3
        assert f"[{IDENTITY}]" in shown and f"[{value}]" in shown and "[4321]" in shown


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "value"), VALUES)
def test_asserts_on_a_gpu(dtype: str, value: str) -> None:
    done = child("cuda", dtype, value)
    assert done.returncode != 0 and "clean" in done.stdout and "returned" not in done.stdout
    assert "device-side assert" in done.stderr
    shown = done.stdout + done.stderr
    assert str(IDENTITY) in shown and "4321" in shown and "outlier" in shown


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (torch.tensor([0.0, 1e11]), 1),
        (torch.tensor([[0.0, -1e11], [float("nan"), 0.0]]), 1),
        (torch.tensor([[0.0, 3.0], [float("nan"), 0.0]]).T, 1),
        (torch.tensor([float("-inf")], dtype=torch.float16), 0),
        (torch.tensor([0, 0, 1.1e11]).bfloat16(), 2),
    ],
)
def test_reference_names_the_first(data: torch.Tensor, offset: int) -> None:
    with dispatch.using("reference"), pytest.raises(RuntimeError, match=rf"id 5, value .*, offset {offset}$"):
        detect_outlier_and_abort(data, 5)


def test_passes() -> None:
    with dispatch.using("reference"):
        detect_outlier_and_abort(torch.tensor([9.9e10, -9.9e10, 0.0]))
        detect_outlier_and_abort(torch.zeros(0, 3))
        detect_outlier_and_abort(torch.tensor(2.0), max_abs=2.5)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.zeros(2, dtype=torch.int32),), TypeError, "data must be float16 or bfloat16 or float32"),
        (([1.0],), ValueError, "data must be a tensor"),
        ((torch.zeros(2), 2**63), ValueError, "id must be at least"),
        ((torch.zeros(2), 0, 0.0), ValueError, "max_abs must be above 0"),
    ],
)
def test_refused(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        detect_outlier_and_abort(*arguments)
