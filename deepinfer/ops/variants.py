"""Compile every variant of the Triton kernels that the cases use, without running one and without a GPU.

A variant is what Triton compiles once: a kernel with its compile-time arguments, the types of the others, and what it
is told of them (divisible by 16, equal to 1).
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from deepinfer.ops import dispatch
from deepinfer.ops.case import Case
from deepinfer.ops.cases import cases
from deepinfer.ops.execution import relocated
from deepinfer.ops.launch import compiling
from deepinfer.ops.names import FAMILIES

TARGET = "sm_90a"


@dataclass(frozen=True)
class Report:
    """counts: variants by kernel. problems: what did not compile, or not for TARGET."""

    counts: dict[str, int]
    problems: tuple[str, ...]

    @property
    def total(self) -> int:
        """Variants of all kernels."""
        return sum(self.counts.values())


class HopperDriver:
    """A stand-in for Triton's driver on a machine without a GPU: it names the target, and can launch nothing."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_cases(families: Iterable[str] = FAMILIES, *, engine_only: bool = False) -> Report:
    """Compile what the cases of these families launch, into Triton's cache.

    engine_only: only the variants that the real model uses.
    """
    triton.runtime.driver.set_active(HopperDriver())  # type: ignore[arg-type]  # what is used of DriverBase
    seen: dict[str, set[str]] = collections.defaultdict(set)
    problems: list[str] = []

    def record(kernel: Any, compiled: Any) -> None:
        target = re.search(r"^\.target\s+(\S+)", compiled.asm["ptx"], re.MULTILINE)
        if target is None or target[1].rstrip(",") != TARGET:
            problems.append(f"{kernel.__name__}: compiled for {target and target[1]}, not {TARGET}")
        seen[kernel.__name__].add(compiled.hash)

    for case in cases(families):
        if case.engine or not engine_only:
            problems += _compile(case, record)
    return Report({name: len(hashes) for name, hashes in sorted(seen.items())}, tuple(problems))


def _compile(case: Case, record: Any) -> list[str]:
    call = relocated(case.call(), "cpu")
    with dispatch.using(dispatch.Settings("triton", strict=True)), compiling(record):
        try:
            kernel = dispatch.factory(case.factory)(*call.parameters, **call.named)
            kernel(*(one.value for one in call.arguments))
        except Exception as problem:  # any failure of the compiler is a finding, and the other cases go on
            return [f"{case.factory} {case.name}: {type(problem).__name__}: {str(problem).strip()[:600]}"]
    return []
