"""`--gemm deep_gemm`: what is refused, and in which words, before a weight is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepinfer import LLM
from deepinfer.cli import main
from deepinfer.environment import toolchain
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.exactness.__main__ import main as exactness
from deepinfer.model import deep_gemm, load
from deepinfer.model.deep_gemm import DeepGemm, products_of
from deepinfer.model.products import EXACT

CUDA = torch.device("cuda")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine as it is said to be: its GPU's capability, what examining DeepGEMM gives, the tool chain's problem."""

    def say(capability: tuple[int, int] = (9, 0), problem: str = "", **row: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
        found = {"status": "present", "reason": "", **row}
        monkeypatch.setattr(deep_gemm, "examine", lambda name, _: found | {"name": name})
        monkeypatch.setattr(toolchain, "find", lambda: SimpleNamespace(problem=problem))

    return say


def test_exact_needs_nothing() -> None:
    assert products_of("exact", torch.device("cpu")) is EXACT
    with pytest.raises(ValueError, match="gemm must be exact or deep_gemm, not 'cutlass'"):
        products_of("cutlass", CUDA)  # type: ignore[arg-type]


def test_no_gpu() -> None:
    with pytest.raises(DeepInferError, match="needs a Hopper GPU, and the model is to run on cpu") as told:
        products_of("deep_gemm", torch.device("cpu"))
    assert told.value.exit_code == 4 and told.value.cause and "leave --gemm out" in told.value.next_step


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_that_pytorch_sees() -> None:
    with pytest.raises(DeepInferError, match="needs a Hopper GPU, and PyTorch sees none"):
        products_of("deep_gemm", CUDA)


@pytest.mark.parametrize(
    ("machine", "texts"),
    [
        ({"capability": (8, 0)}, ["compute capability 9.0", "and a GPU has 8.0"]),
        ({"capability": (10, 0)}, ["and a GPU has 10.0"]),
        ({"status": "absent", "reason": "not installed"}, ["is not here: not installed", "/opt/deepinfer/site"]),
        ({"status": "failed", "reason": "ImportError: libfoo"}, ["cannot be used: ImportError: libfoo"]),
        ({"status": "crashed", "reason": "its process ended by SIGSEGV"}, ["cannot be used: its process ended"]),
        ({"status": "timeout", "reason": "gave no answer within 120 s"}, ["cannot be used: gave no answer"]),
        ({"problem": "no CUDA tool chain: CUDA_HOME is unset"}, ["cannot compile", "CUDA_HOME is unset", "12.9"]),
    ],
)
def test_machines_that_cannot(hopper: Callable[..., None], machine: dict[str, Any], texts: list[str]) -> None:
    hopper(**machine)
    with pytest.raises(DeepInferError) as told:
        products_of("deep_gemm", CUDA)
    assert told.value.exit_code == 4 and told.value.cause and "leave --gemm out" in told.value.next_step
    for text in texts:
        assert text in str(told.value)


def test_it_does_not_go_with_batch_invariance(hopper: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    hopper()
    monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "1")
    with pytest.raises(UsageError, match="does not go with DEEPINFER_BATCH_INVARIANT=1") as told:
        products_of("deep_gemm", CUDA)
    assert told.value.exit_code == 1 and "unset the variable" in told.value.next_step
    assert products_of("exact", CUDA) is EXACT


def test_before_a_weight_is_read(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_read", lambda *_: pytest.fail("weights are read"))
    for options in ({}, {"load_format": "dummy"}):
        monkeypatch.setattr(load, "_dummy", lambda *_: pytest.fail("weights are made"))
        with pytest.raises(DeepInferError, match="--gemm deep_gemm needs a Hopper GPU"):
            LLM(tiny_folder, device="cpu", gemm="deep_gemm", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["ask", "bench", "generate"])
def test_the_command_line_says_it(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str
) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text('"The quick"\n')
    words = {"ask": ["ask", "The quick"], "bench": ["bench", "latency"], "generate": ["generate", "--input", lines]}
    given = [*map(str, words[verb]), "--model", str(tiny_folder), "--device", "cpu"]
    assert main([*given, "--gemm", "deep_gemm"]) == 4
    told = capsys.readouterr().err
    assert "--gemm deep_gemm needs a Hopper GPU" in told and "next step:" in told and "Traceback" not in told
    assert main([*given, "--gemm", "fp8"]) == 1
    assert "invalid choice: 'fp8'" in capsys.readouterr().err


def test_so_does_the_command_of_exactness(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exactness(["--model", str(tiny_folder), "--device", "cpu", "--gemm", "deep_gemm"]) == 4
    assert "--gemm deep_gemm needs a Hopper GPU" in capsys.readouterr().err


def test_an_llm_says_how_it_multiplies(tiny_llm: LLM) -> None:
    assert tiny_llm.gemm == "exact" and tiny_llm.gemm_notice == ""
    assert repr(tiny_llm).endswith("on cpu, reference kernels, exact products>")


def test_a_failed_compilation_is_told_in_words() -> None:
    def fp8_gemm_nt(*_: object) -> None:
        raise RuntimeError("Failed to compile\n  with a long log")

    library = DeepGemm.__new__(DeepGemm)
    library._module = SimpleNamespace(fp8_gemm_nt=fp8_gemm_nt)
    with pytest.raises(DeepInferError, match="DeepGEMM's fp8_gemm_nt failed: Failed to compile") as told:
        library.linear((), (), torch.empty(1))  # type: ignore[arg-type]
    assert told.value.exit_code == 4 and "leave --gemm out" in told.value.next_step
