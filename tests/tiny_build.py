"""A twenty-line extension as a component of the cpu image, compiled by the real machinery in real containers.

As a program it is the build that a test kills: `python -m tests.tiny_build INSPECTION KEY SOURCE [SOURCE …]`, where
INSPECTION is a file that `Bench.save` wrote; it prints the results as JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from build.bases.inspect import inspect_base
from build.bases.resolve import resolve_base
from build.containers import Engine
from build.inspection import Inspection
from build.matrix.load import load_matrix
from build.matrix.model import Component, Matrix, Source, Target
from build.plan import Cell, TargetPlan
from build.wheels.builder import builder_image
from build.wheels.compile import CellResult, compile_cells

CODE = """
#include <Python.h>
#include <regex>
static int matches(const char *text) { return std::regex_match(text, std::regex("a+b")); }
static PyObject *check(PyObject *, PyObject *) { return PyLong_FromLong(matches("aab")); }
static PyMethodDef methods[] = {{"check", check, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny._C", "", -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
SETUP = """
import socket
from setuptools import Extension, setup
try:
    socket.create_connection(("1.1.1.1", 53), timeout=5)
except OSError:
    pass
else:
    raise SystemExit("a compile has no business with the network")
setup(name="tiny", version="1.0", packages=["tiny"],
      ext_modules=[Extension("tiny._C", ["tiny/module.cpp"], language="c++")])
"""
SLOW = "import time; print('halfway', flush=True); time.sleep(900)\n"


def write_source(folder: Path, *, code: str = CODE, setup: str = SETUP) -> Path:
    """The component's source in a new folder."""
    (folder / "tiny").mkdir(parents=True, exist_ok=True)
    (folder / "setup.py").write_text(setup)
    (folder / "tiny/__init__.py").write_text("")
    (folder / "tiny/module.cpp").write_text(code)
    return folder


def tiny(name: str, source: Path | Source, **fields: object) -> Component:
    """A component from a folder, or from another source."""
    where = source if isinstance(source, Source) else Source(path=str(source))
    return dataclasses.replace(Component(name, name, "wheel", "1.0", where, memory_gib=0.5), **fields)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Bench:
    """The cpu replica, looked into, with its builder made."""

    engine: Engine
    target: Target
    reference: str
    inspection: Inspection

    @classmethod
    def make(cls) -> Bench:
        """Whatever is missing is made; minutes on a machine that never did it."""
        engine = Engine.connect()
        matrix = load_matrix()
        target = matrix.targets["cpu"]
        base = resolve_base(engine, target, "replica")
        inspection = inspect_base(engine, base.reference)
        builder_image(engine, base.reference, inspection, target, matrix)
        return cls(engine, target, base.reference, inspection)

    def save(self, path: Path) -> None:
        """Write down what another process needs to build on this bench."""
        path.write_text(json.dumps(self.inspection.to_json()))

    @classmethod
    def load(cls, path: Path) -> Bench:
        """The bench that `save` wrote down."""
        inspection = Inspection.from_json(json.loads(path.read_text()))
        return cls(Engine.connect(), load_matrix().targets["cpu"], inspection.reference, inspection)

    def build(self, components: Mapping[str, Component], **options: object) -> dict[str, CellResult]:
        """Compile components under keys that follow from their names in the mapping."""
        cells = tuple(
            Cell("cpu", component, "build", hashlib.sha256(key.encode()).hexdigest())
            for key, component in components.items()
        )
        named = {component.name: component for component in components.values()}
        target = dataclasses.replace(self.target, components=tuple(named))
        results = compile_cells(
            self.engine,
            TargetPlan(target, self.inspection, "replica", cells, image_key=""),
            inspection=self.inspection,
            base_reference=self.reference,
            matrix=Matrix(components=named, targets={"cpu": target}),
            **options,  # type: ignore[arg-type]
        )
        return {result.cell.component.name: result for result in results}


def main() -> None:
    """Build one component a source, named for its folder."""
    bench = Bench.load(Path(sys.argv[1]))
    sources = [Path(word) for word in sys.argv[3:]]
    results = bench.build({f"{sys.argv[2]}-{source.name}": tiny(source.name, source) for source in sources})
    print(json.dumps({name: result.status for name, result in results.items()}))


if __name__ == "__main__":
    main()
