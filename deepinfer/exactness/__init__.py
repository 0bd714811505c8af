"""How far the engine is from the oracle, layer by layer: what tests ask, and `python -m deepinfer.exactness` prints.

Two correct programs differ by the order of their sums, and where a rounding or a choice hangs on the last bit, by more.
`noise` measures that much on the oracle alone; what is beyond it is a fault.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    "choices": ("Choice", "Differences", "first_differences"),
    "comparison": ("Comparison", "compare"),
    "engine_run": ("EngineRun", "run_engine"),
    "noise": ("Noise", "choices_of", "distance", "measure"),
    "subject": ("Subject", "open_subject", "standard_prompt"),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: what Ctrl-C and a missing torch do has to be settled before that."""
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
