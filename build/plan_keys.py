"""What a component's key hashes: everything that can change its binary, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath

from build import cuda_headers
from build.inspection import Inspection
from build.matrix.model import Component
from build.plan_facts import KnownFacts

KEY_FORMAT = "1"
"""Part of every key; a new number makes every key new."""
FACT_INPUTS = ("torch", "cuda", "gcc", "glibc")
"""The facts of a base that every compiled component's key holds."""


def cell_inputs(component: Component, known: KnownFacts) -> dict[str, str]:
    """What can change the component's binary, by name; nothing of the base's identity, which a rebuild changes."""
    inputs = {
        "format": KEY_FORMAT,
        "component": component.name,
        "kind": component.kind,
        "version": component.version,
        "source": known.sources.get(f"source:{component.name}", ""),
    }
    seen = known.inspection
    inputs["machine"] = seen.machine if seen is not None else "x86_64"
    if component.kind == "overlay":
        return inputs
    facts = known.facts
    inputs |= {fact: facts.get(fact) or "none" for fact in FACT_INPUTS if facts.get(fact) or fact not in known.unstated}
    inputs["recipe"] = known.sources.get(f"recipe:{component.name}", "")
    inputs["builder"] = known.sources.get("builder", "")
    inputs["environment"] = json.dumps(dict(component.environment), sort_keys=True)
    if component.shims:
        inputs["shims"] = known.sources.get(f"shims:{component.name}", "")
    if "nccl" in component.requires:
        inputs["nccl"] = _nccl_headers(known)
    if seen is None:
        return inputs
    inputs |= {"python_tag": seen.python_tag, "ext_suffix": seen.ext_suffix, "torch_git": seen.torch_git or "none"}
    if seen.cuda is not None:
        inputs["cuda_headers"] = _cuda_headers(seen, known.sources)
    if "nccl" in component.requires and seen.nccl_loaded is not None:
        inputs["nccl_folder"] = str(PurePosixPath(seen.nccl_loaded).parent)  # DeepEP's RPATH
    return inputs


def _nccl_headers(known: KnownFacts) -> str:
    """The version of the headers that a compile sees: the overlay's where there is one, else the base's."""
    planned = known.facts.get("nccl")
    if known.inspection is None or planned != known.base.get("nccl"):
        return planned or "none"
    return known.inspection.nccl_header or planned or "none"


def _cuda_headers(seen: Inspection, sources: Mapping[str, str]) -> str:
    """Every distribution that can carry CUDA's headers, NCCL's apart, and the tool kit or what stands in for it."""
    own = cuda_headers.own_headers(seen.cuda, seen.nvcc if cuda_headers.has_kit(seen) else None)
    over = cuda_headers.laid_over(own, cuda_headers.locked_versions(sources))
    kit = f"nvcc=={seen.nvcc}"
    if over is not None:
        step = sources.get("headers", "none")[:16]
        kit = f"{kit if cuda_headers.has_kit(seen) else 'wheels'} below {sources[f'cuda:{over}'][:16]} by {step}"
    elif not cuda_headers.has_kit(seen):
        kit = f"builder=={sources.get(f'cuda:{seen.cuda}', 'none')[:16]}"
    held = [
        f"{name}=={version}"
        for name, version in sorted(seen.distributions.items())
        if name.startswith("nvidia-") and not name.startswith("nvidia-nccl")
    ]
    return " ".join([kit, *held])


def digest(inputs: Mapping[str, str]) -> str:
    """64 hex digits over inputs, whatever their order: the key of a cell or of an image."""
    return hashlib.sha256(json.dumps(dict(inputs), sort_keys=True).encode()).hexdigest()
