"""Small extensions compiled on this machine by the real machinery of the target `host`.

As a program it is the build that a test kills: `python -m tests.host_bench KEY SOURCE`.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

from build.bases.inspect import inspect_host
from build.host.compile import HostShop, compile_on_host
from build.inspection import Inspection
from build.matrix.model import Component, Source
from build.plan import Cell
from build.wheels.cell import Stop
from build.wheels.results import CellResult
from tests.tiny_build import CODE, tiny, write_source

SETUP = """
from setuptools import Extension, setup
setup(name="tiny", version="1.0", packages=["tiny"],
      ext_modules=[Extension("tiny._C", ["tiny/module.cpp"], language="c++")])
"""
QUICK = CODE.replace("#include <regex>", "#include <string>").replace(
    'std::regex_match(text, std::regex("a+b"))', 'std::string(text) == "aab"'
)
"""The extension without <regex>, which takes seconds to compile."""


@functools.cache
def this_machine() -> Inspection:
    """What the interpreter that runs the tests holds; a subprocess imports torch for it."""
    return inspect_host(Path(sys.executable))


def source(folder: Path, *, code: str = QUICK, setup: str = SETUP) -> Path:
    """The source of a component in a new folder."""
    return write_source(folder, code=code, setup=setup)


def cell_of(name: str, where: Path | Source, key: str = "", **fields: object) -> Cell:
    """A cell to be built, under a key that follows from `key` or its name."""
    component: Component = tiny(name, where, **fields)
    return Cell("host", component, "build", hashlib.sha256((key or name).encode()).hexdigest())


def compile_cells(*cells: Cell, keep_going: bool = False, offline: Path | None = None) -> dict[str, CellResult]:
    """Compile on this machine; results by component."""
    shop = HostShop(this_machine(), None, (), None, Stop())
    results = compile_on_host(shop, cells, keep_going=keep_going, jobs=2, offline=offline)
    return {result.cell.component.name: result for result in results}


if __name__ == "__main__":
    compile_cells(cell_of("tiny", Path(sys.argv[2]), sys.argv[1]))
