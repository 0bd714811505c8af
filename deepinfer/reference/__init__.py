"""The oracle of the tests: the model as the specification writes it, in plain PyTorch.

Nothing of the engine uses it. It runs whole prompts, without caches, and is readable beside model_spec.
"""

from __future__ import annotations

from deepinfer.reference.draft import DraftOracle, Proposal
from deepinfer.reference.model import Forced, Oracle, Output
from deepinfer.reference.precision import Precision

__all__ = ["DraftOracle", "Forced", "Oracle", "Output", "Precision", "Proposal"]
