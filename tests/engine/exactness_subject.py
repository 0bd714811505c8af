"""The tiny model as engine and oracle, for tests of exactness."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from deepinfer.exactness import Subject
from deepinfer.model.model import Model, Truncation
from deepinfer.model.weights import gather_weights
from tests.engine.model_runs import FEW_CANDIDATES, config, lookup, tensors


@functools.cache
def engine(
    device: str = "cpu", candidates: int = FEW_CANDIDATES, truncation: Truncation = "off", keep_tokens: int = 140
) -> Model:
    """The tiny model on a device."""
    own = config(candidates)
    weights = gather_weights(own, lambda name: tensors()[name].to(device), device)
    return Model(own, weights, lookup=lookup(), truncation=truncation, keep_tokens=keep_tokens)


def subject(device: str = "cpu", candidates: int = FEW_CANDIDATES) -> Subject:
    """The tiny model twice."""
    return Subject(config(candidates), tensors(), lookup(), engine(device, candidates))


def faulty(changes: Mapping[str, torch.Tensor]) -> Subject:
    """With an engine that has other values in some tensors than the oracle."""
    own = config(FEW_CANDIDATES)
    held = {**tensors(), **changes}
    model = Model(own, gather_weights(own, held.__getitem__, "cpu"), lookup=lookup())
    return Subject(own, tensors(), lookup(), model)
