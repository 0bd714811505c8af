"""How far the engine is from the oracle, layer by layer: what tests ask, and `python -m deepinfer.exactness` prints.

Two correct programs differ by the order of their sums, and where a rounding or a choice hangs on the last bit, by more.
`noise` measures that much on the oracle alone; what is beyond it is a fault.
"""

from __future__ import annotations

from deepinfer.exactness.choices import Choice, Differences, first_differences
from deepinfer.exactness.comparison import Comparison, compare
from deepinfer.exactness.engine_run import EngineRun, run_engine
from deepinfer.exactness.noise import Noise, choices_of, distance, measure
from deepinfer.exactness.subject import Subject, open_subject, standard_prompt

__all__ = [
    "Choice",
    "Comparison",
    "Differences",
    "EngineRun",
    "Noise",
    "Subject",
    "choices_of",
    "compare",
    "distance",
    "first_differences",
    "measure",
    "open_subject",
    "run_engine",
    "standard_prompt",
]
