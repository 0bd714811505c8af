"""The cpu image under a name of the tests' own, built by the real pipeline on the cpu replica.

As a program it is one of two builds at once: `python -m tests.pipeline_bench` prints how the build ended as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from build.bases.inspect import expected
from build.bases.replica import reference
from build.containers import Engine
from build.matrix.load import load_matrix
from build.matrix.model import Component, Matrix, Source, Target
from build.outcome import BuildOptions
from build.pipeline import build_image

NAME = "pipeline-test"


def ground(**further: Component) -> tuple[Matrix, Target]:
    """A matrix with the one image: the cpu replica counts as a vendor's image that is here.

    further: components beside deepinfer._C.
    """
    matrix = load_matrix()
    cpu = matrix.targets["cpu"]
    target = dataclasses.replace(
        cpu, name=NAME, vendor=reference(cpu), replica=None, expect=expected(cpu, "replica"),
        components=("_C", *further),
    )  # fmt: skip
    return Matrix({"_C": matrix.components["_C"], **further}, {NAME: target}), target


def pure_component(name: str, folder: Path, code: str, *, setup: str = "") -> Component:
    """A component of one Python module, whose setup.py begins with `setup`."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f'__version__ = "1.0"\n{code}')
    (folder / "LICENSE").write_text("Free for tests.\n")
    call = f"from setuptools import setup\nsetup(name={name!r}, version='1.0', packages=[{name!r}])\n"
    (folder / "setup.py").write_text(setup + call)
    return Component(name, name, "wheel", "1.0", Source(path=str(folder)), module=name, memory_gib=0.5)


if __name__ == "__main__":
    made = build_image(Engine.connect(), *ground(), BuildOptions())
    print(json.dumps({"status": made.status, "where": made.where, "manifest": str(made.manifest or "")}))
