"""The plan: a pure function of matrix, inspections and source hashes. Every cell is cached, build or unsupported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from build.inspection import Inspection
from build.matrix.model import Component, Target

CellStatus = Literal["cached", "build", "unsupported"]


@dataclass(frozen=True)
class Cell:
    """A component in an image.

    key: 64 hex digits over everything that can change the component's binary; empty when unsupported.
    inputs: what the key hashes, by name, so that two keys can be compared and the manifest can say why it rebuilt.
    expected: the facts come from `expect`, not from an inspection.
    """

    image: str
    component: Component
    status: CellStatus
    key: str = ""
    reason: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    expected: bool = False

    @property
    def name(self) -> str:
        """`flagtree/deep_gemm`."""
        return f"{self.image}/{self.component.name}"


@dataclass(frozen=True)
class TargetPlan:
    """The cells of one target, in install order, and the key of the image that they make."""

    target: Target
    inspection: Inspection | None
    base_kind: Literal["vendor", "replica", "host"]
    cells: tuple[Cell, ...]
    image_key: str

    def to_json(self) -> dict[str, Any]:
        """For `plan --json`: no file paths of this machine, stable order."""
        return {
            "image": self.target.name,
            "kind": self.target.kind,
            "base": self.base_kind,
            "expected": self.inspection is None,
            "image_key": self.image_key,
            "cells": [
                {
                    "cell": cell.name,
                    "version": cell.component.version,
                    "status": cell.status,
                    "reason": cell.reason,
                    "key": cell.key,
                    "expected": cell.expected,
                    "inputs": dict(cell.inputs),
                }
                for cell in self.cells
            ],
        }
