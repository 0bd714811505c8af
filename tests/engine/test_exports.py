"""What `deepinfer` itself offers, and that importing it costs nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

import deepinfer

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_importing_brings_neither_torch_nor_the_engine(run_python: Run) -> None:
    code = (
        "import sys, deepinfer; from deepinfer import SamplingParams; SamplingParams(max_tokens=3);"
        "print([name for name in ('torch', 'triton', 'numpy', 'tokenizers', 'deepinfer.engine.llm')"
        " if name in sys.modules])"
    )
    assert run_python("-c", code).stdout == "[]\n"


def test_every_name_that_is_offered_is_there() -> None:
    assert {"LLM", "SamplingParams", "RequestOutput"} <= set(deepinfer.__all__) <= set(dir(deepinfer))
    for name in deepinfer.__all__:
        assert getattr(deepinfer, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'LLm'"):
        _ = deepinfer.LLm
