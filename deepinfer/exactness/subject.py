"""A model twice: as the engine runs it, and as the tensors that the oracle reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from deepinfer.config import ModelConfig, read_config
from deepinfer.loading.checkpoint import Checkpoint
from deepinfer.loading.dummy import dummy_tensors
from deepinfer.model.deep_gemm import Gemm
from deepinfer.model.load import LoadedModel, load_model
from deepinfer.model.model import Model
from deepinfer.model.threads import fitting_threads
from deepinfer.reference import Oracle, Precision
from deepinfer.reference.precision import ROUNDED

PROMPT_SEED = 11
ORACLES = torch.device("cpu")
"""Where the oracle runs."""


@dataclass(frozen=True)
class Subject:
    """tensors: by their names in a checkpoint, on the CPU, where the oracle runs. lookup: engram's vocabulary.

    model: the same weights, on any device. gemm, gemm_notice: how it multiplies them, as `LoadedModel` has it.
    """

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    lookup: torch.Tensor | None
    model: Model
    gemm: Gemm = "exact"
    gemm_notice: str = ""

    def oracle(self, precision: Precision = ROUNDED) -> Oracle:
        """The oracle with these weights."""
        return Oracle(self.config, self.tensors, precision, lookup=self.lookup)


def open_subject(
    folder: Path,
    *,
    device: torch.device | str,
    load_format: Literal["auto", "dummy"] = "auto",
    seed: int = 0,
    gemm: Gemm = "exact",
) -> Subject:
    """Both from a checkpoint's folder; "dummy" and `gemm` as `load_model` has them.

    Raises:
        DeepInferError: as `load_model` raises it.
    """
    with fitting_threads(read_config(folder).hidden, ORACLES):
        loaded = load_model(folder, device=device, load_format=load_format, seed=seed, gemm=gemm)
        tensors = _tensors(folder, loaded, load_format, seed)
    lookup = None
    if loaded.config.engram is not None:
        size = loaded.config.engram.compressed_vocab
        lookup = loaded.tokenizer.lookup() if loaded.tokenizer else torch.arange(loaded.config.vocab_size) % size
    return Subject(loaded.config, tensors, lookup, loaded.model, gemm, loaded.gemm_notice)


def _tensors(folder: Path, loaded: LoadedModel, load_format: str, seed: int) -> dict[str, torch.Tensor]:
    if load_format == "dummy":
        # Another device would draw others.
        return {name: one.cpu() for name, one in dummy_tensors(loaded.config, seed, loaded.model.device)}
    with Checkpoint.open(folder, loaded.config) as checkpoint:
        # Mapped from the files; the oracle dequantises one when it needs it.
        return {name: checkpoint.take(name) for name in list(checkpoint.places)}


def standard_prompt(vocab_size: int, length: int) -> list[int]:
    """Tokens drawn with a fixed seed: the tests' own prompt where vocabulary and length are the tiny model's."""
    generator = torch.Generator().manual_seed(PROMPT_SEED)
    found: list[int] = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
    return found
