"""DEEPINFER_BATCH_INVARIANT: what the demand means, and what is refused because of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepinfer.engine.llm import LLM
from deepinfer.engine.placement import kernels_of
from deepinfer.errors import DeepInferError, VariableError
from deepinfer.ops import dispatch

GPU = torch.device("cuda", 0)
MIXED = dispatch.Settings("triton", frozenset({"sparse_attention_decode", "norm_tl"}))


def test_kernels_of_two_backends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with dispatch.using(MIXED):
        assert kernels_of(None, GPU).fallbacks == MIXED.fallbacks
        monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "1")
        with pytest.raises(DeepInferError, match="cannot be kept: norm_tl, sparse_attention_decode would") as caught:
            kernels_of(None, GPU)
    assert "DEEPINFER_OPS_FALLBACK" in caught.value.cause and "--backend reference" in caught.value.next_step


def test_no_kernel_may_fall_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dispatch.Settings("triton")
    for value, strict in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", value)
        with dispatch.using(plain):
            assert kernels_of(None, GPU) == dispatch.Settings("triton", strict=strict)


def test_one_backend_alone_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of fallbacks mean nothing where everything comes from the reference."""
    monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "1")
    with dispatch.using(MIXED):
        chosen = kernels_of("reference", torch.device("cpu"))
    assert chosen.backend == "reference" and chosen.strict


def test_a_value_that_is_none_is_told_before_weights_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "perhaps")
    with pytest.raises(VariableError, match="DEEPINFER_BATCH_INVARIANT='perhaps' is not allowed") as caught:
        LLM(tmp_path, device="cpu")
    assert "0 or 1" in caught.value.cause and caught.value.exit_code == 1
