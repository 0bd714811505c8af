"""DeepInfer for Hopper GPUs.

    from deepinfer import LLM, SamplingParams

Importing this package puts the folder of the optional parts (deep_gemm, deep_ep) first on this process's path and
points their caches and tool chain somewhere usable; see `deepinfer.activation`. It imports neither torch nor any of
those parts: what it offers is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM
    from deepinfer.engine.outputs import Completion, RequestOutput, TokenLogprobs
    from deepinfer.errors import DeepInferError
    from deepinfer.sampling import SamplingParams, Structure

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "DeepInferError", "RequestOutput", "SamplingParams", "Structure", "TokenLogprobs"]

from deepinfer import interrupts

interrupts.install_for("deepinfer")

from deepinfer import activation, native, packages  # noqa: E402  # Ctrl-C is taken care of first

activation.activate()
native.guard_imports()

_HOMES = {
    "LLM": "deepinfer.engine.llm",
    "Completion": "deepinfer.engine.outputs",
    "DeepInferError": "deepinfer.errors",
    "RequestOutput": "deepinfer.engine.outputs",
    "SamplingParams": "deepinfer.sampling",
    "Structure": "deepinfer.sampling",
    "TokenLogprobs": "deepinfer.engine.outputs",
}


def __getattr__(name: str) -> Any:
    """Import what is offered when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deepinfer' has no attribute {name!r}")
    if name == "LLM":
        packages.check("torch", "numpy", what="deepinfer.LLM")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
