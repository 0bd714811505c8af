"""How tokens are chosen: a request's parameters, and what is done with logits."""

from __future__ import annotations

from deepinfer.sampling.params import SamplingParams, Structure

__all__ = ["SamplingParams", "Structure"]
