"""The packages that the engine imports, and how it tells that one is not there: what, why, and what to type."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from deepinfer.errors import DeepInferError

DEPENDENCIES = ("numpy>=1.26", "safetensors>=0.4.3", "tokenizers>=0.20")
"""What an installer brings, as pyproject.toml has it, with the oldest versions that work."""
BROUGHT = tuple(name.partition(">")[0] for name in DEPENDENCIES)
"""Their names alone."""
_COMMANDS = {
    "torch": "install the torch that fits this machine's driver (pip install torch)",
    "triton": "pip install triton; torch for CUDA brings the one that fits it",
    **{name: f"pip install '{line}'" for name, line in zip(BROUGHT, DEPENDENCIES, strict=True)},
}


def check(*names: str, what: str) -> None:
    """Make sure that packages are there, without importing them.

    Args:
        what: what needs them, as in "`deepinfer ask`".

    Raises:
        DeepInferError: one is not installed.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise _absent(what, name)


def need(name: str, what: str, *, otherwise: str = "") -> ModuleType:
    """Import a package, or a module of it.

    Args:
        what: what needs it, as in "reading a checkpoint".
        otherwise: what to do instead of installing it.

    Raises:
        DeepInferError: it is not installed, or cannot be imported.
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name != package:
            raise _broken(what, package, problem) from problem
        raise _absent(what, package, otherwise) from problem
    except ImportError as problem:
        raise _broken(what, package, problem) from problem


def told(problem: ImportError) -> DeepInferError | None:
    """The error of an import that failed wherever it was; None where it is no package of those above."""
    package = (problem.name or "").partition(".")[0]
    if package not in _COMMANDS:
        return None
    if isinstance(problem, ModuleNotFoundError) and problem.name == package:
        return _absent("this", package)
    return _broken("this", package, problem)


def _absent(what: str, package: str, otherwise: str = "") -> DeepInferError:
    return DeepInferError(
        f"{what} needs the package {package}, which is not installed",
        cause="this is another Python than deepinfer was installed for, or "
        + (
            "it was installed without its dependencies"
            if package in BROUGHT
            else "it is left to you to choose one, since an image has its own"
        ),
        next_step=_COMMANDS[package] + (f", or {otherwise}" if otherwise else ""),
    )


def _broken(what: str, package: str, problem: ImportError) -> DeepInferError:
    return DeepInferError(
        f"{what} needs the package {package}, which cannot be imported: {problem}",
        cause="it, or what it needs itself, is damaged or does not fit this Python",
        next_step=f"{_COMMANDS[package]}; `deepinfer env` says what is here",
    )
