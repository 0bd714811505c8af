"""How tokens are chosen: a request's parameters, and what is done with logits.

`sampler.Sampler` is imported from its own module: it needs torch, and parameters do not.
"""

from __future__ import annotations

from deepinfer.sampling.params import SamplingParams, Structure

__all__ = ["SamplingParams", "Structure"]
