"""The tiny model on a GPU, by the verb and by the class: on Triton alone, with the same answers in any company."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer import LLM, SamplingParams

pytestmark = pytest.mark.gpu
Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROMPTS = ["The quick brown fox", "Ein schöner Tag", "once upon a time " * 40]


def test_ask_runs_on_triton_alone(run_python: Run, tiny_folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "kernels.jsonl"
    strict = {"DEEPINFER_OPS_STRICT": "1", "DEEPINFER_TRACE_KERNELS": str(trace)}
    options = ("--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--json")
    done = run_python("-m", "deepinfer", "ask", "--model", tiny_folder, *options, PROMPTS[0], **strict)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["outputs"][0]["token_ids"]) == 12
    backends = {json.loads(line)["backend"] for line in trace.read_text().splitlines()}
    assert backends == {"triton"}


def test_answers_are_the_same_alone_and_together(tiny_folder: Path) -> None:
    llm = LLM(tiny_folder, device="cuda", backend="triton", max_num_seqs=8)
    params = [SamplingParams(seed=number, max_tokens=16, logprobs=0, ignore_eos=True) for number in range(3)]
    together = llm.generate(PROMPTS, params)
    for prompt, its, output in zip(PROMPTS, params, together, strict=True):
        (alone,) = llm.generate(prompt, its)
        assert alone.outputs == output.outputs
